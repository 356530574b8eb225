// A whole attention sublayer in one call.  A decoded token has little to compute between two steps, so that leaving
// and entering the library for each of them would cost more than many of them take.
#include "steps.h"
#include "workspace.h"

struct ps_layer {
    const ps_projections* inputs;
    const ps_queries* queries;
    const ps_keys* keys;
    const ps_compressor *compressor, *index_compressor;  // null where a layer has none
    const ps_attention* sight;
    const ps_output* output;
    i64 gates_column, choice;  // the indexer's: where its heads' weights stand, and how many rows it picks
};

// What one sequence remembers of the tokens that a compressor makes rows of.
struct ps_series {
    const ps_ring* frontier;
    float* fresh;  // see ps_compress
    i64 kept;
    void* rows;
    i64 rows_kind;
};

// One sequence's rows [start, start + count) of a batch, and its memory.
struct ps_sequence {
    i64 start, count, position;
    const ps_ring* window;
    void* fresh;  // see ps_keys_of
    ps_series compressed, index;
};

namespace {

// The results between the steps, one after another in the layer's workspace.
struct Between {
    float *projected, *q, *index_q;
    i64* picks;

    Between(const ps_layer& l, i64 rows) {
        const ps_queries& q_of = *l.queries;
        const bool indexed = l.index_compressor != nullptr;
        const i64 sizes[] = {indexed ? 2 * l.choice : 0, l.inputs->width, q_of.heads * q_of.dim,
                             indexed ? q_of.index_heads * q_of.index_dim : 0};
        i64 offsets[5] = {};
        for (int i = 0; i < 4; i++) offsets[i + 1] = offsets[i] + (rows * sizes[i] + 15) / 16 * 16;
        float* memory = workspace<IN_A_LAYER>(offsets[4]);
        picks = reinterpret_cast<i64*>(memory);
        projected = memory + offsets[1];
        q = memory + offsets[2];
        index_q = indexed ? memory + offsets[3] : nullptr;
    }
};

void compress(const ps_compressor* c, const ps_series& series, const float* projected, i64 stride,
              const ps_sequence& s, i64 threads) {
    ps_compress(c, projected, stride, s.count, s.position, series.frontier, series.fresh, series.kept, series.rows,
                series.rows_kind, threads);
}

}  // namespace

// x, out [rows, hidden]; cos, sin [rows, half].
PS_EXPORT void ps_layer_attention(const ps_layer* l, const ps_sequence* const* sequences, i64 sequence_count,
                                  const float* x, i64 rows, const float* cos, const float* sin, float* out,
                                  i64 threads) {
    const ps_queries& q_of = *l->queries;
    const i64 width = l->inputs->width, half = q_of.half, heads = q_of.heads * q_of.dim;
    const Between between(*l, rows);
    ps_project(l->inputs, x, rows, between.projected, threads);
    ps_queries_of(&q_of, between.projected, width, cos, sin, rows, between.q, between.index_q, threads);
    for (i64 i = 0; i < sequence_count; i++) {
        const ps_sequence& s = *sequences[i];
        const float *projected = between.projected + s.start * width;
        const float *own_cos = cos + s.start * half, *own_sin = sin + s.start * half;
        ps_keys_of(l->keys, projected, width, own_cos, own_sin, s.count, s.window, s.fresh, s.position, threads);
        // Before attention: the token that completes a window already sees that window's row.
        i64 seen = 0;
        if (l->compressor) {
            compress(l->compressor, s.compressed, projected, width, s, threads);
            seen = (s.position + s.count) / l->sight->ratio;
        }
        i64* picks = nullptr;
        if (l->index_compressor) {
            compress(l->index_compressor, s.index, projected, width, s, threads);
            if (seen > l->choice) {  // else all that can be seen are chosen
                picks = between.picks + s.start * l->choice;
                const float* index_q = between.index_q + s.start * q_of.index_heads * q_of.index_dim;
                const ps_index task{.q = index_q,
                                    .gates = projected + l->gates_column,
                                    .gates_stride = width,
                                    .tokens = s.count,
                                    .heads = q_of.index_heads,
                                    .dim = q_of.index_dim,
                                    .rows = s.index.rows,
                                    .rows_stride = q_of.index_dim,
                                    .rows_kind = s.index.rows_kind,
                                    .row_count = seen,
                                    .visible = nullptr,
                                    .position = s.position,
                                    .ratio = l->sight->ratio,
                                    .count = l->choice,
                                    .width = l->choice,
                                    .picks = picks};
                ps_select(&task, threads);
            }
        }
        float* q = between.q + s.start * heads;  // results take the queries' place
        const ps_attention_call call{.q = q,
                                     .tokens = s.count,
                                     .position = s.position,
                                     .ring = s.window,
                                     .fresh = s.fresh,
                                     .rows = seen ? s.compressed.rows : nullptr,
                                     .rows_stride = q_of.dim,
                                     .rows_kind = s.compressed.rows_kind,
                                     .row_count = seen,
                                     .visible = nullptr,
                                     .picks = picks,
                                     .picks_width = picks ? l->choice : 0,
                                     .cos = own_cos,
                                     .sin = own_sin,
                                     .out = q};
        ps_attend(l->sight, &call, threads);
    }
    ps_output_of(l->output, between.q, rows, out, threads);
}
