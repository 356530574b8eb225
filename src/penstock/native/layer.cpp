// A whole attention sublayer in one call.  A decoded token has little to compute between two steps, so that leaving
// and entering the library for each of them would cost more than many of them take.
#include <algorithm>

#include "steps.h"
#include "threads.h"
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

constexpr i64 BLOCK = 512;  // rows that have queries at a time: those are large

// The results between the steps, one after another in the layer's workspace.
struct Between {
    float *projected, *q, *index_q;  // the latter two of one block of rows
    i64* picks;

    Between(const ps_layer& l, i64 rows) {
        const ps_queries& q_of = *l.queries;
        const bool indexed = l.index_compressor != nullptr;
        const i64 block = std::min(rows, BLOCK);
        const i64 sizes[] = {indexed ? 2 * block * l.choice : 0, rows * l.inputs->width, block * q_of.heads * q_of.dim,
                             indexed ? block * q_of.index_heads * q_of.index_dim : 0};
        i64 offsets[5] = {};
        for (int i = 0; i < 4; i++) offsets[i + 1] = offsets[i] + (sizes[i] + 15) / 16 * 16;
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

// What tokens [first, first + count) of a sequence see.  q, index_q, picks, cos, sin, projected: theirs; q becomes the
// result.
void look(const ps_layer& l, const ps_sequence& s, i64 first, i64 count, float* q, const float* index_q, i64* picks,
          const float* projected, const float* cos, const float* sin, i64 threads) {
    const ps_queries& q_of = *l.queries;
    const i64 position = s.position + first, ratio = l.sight->ratio;
    const i64 seen = l.compressor ? (position + count) / ratio : 0;
    const bool choosing = l.index_compressor && seen > l.choice;  // else all that can be seen are chosen
    if (choosing) {
        const ps_index task{.q = index_q,
                            .gates = projected + l.gates_column,
                            .gates_stride = l.inputs->width,
                            .tokens = count,
                            .heads = q_of.index_heads,
                            .dim = q_of.index_dim,
                            .rows = s.index.rows,
                            .rows_stride = q_of.index_dim,
                            .rows_kind = s.index.rows_kind,
                            .row_count = seen,
                            .visible = nullptr,
                            .position = position,
                            .ratio = ratio,
                            .count = l.choice,
                            .width = l.choice,
                            .picks = picks};
        ps_select(&task, threads);
    }
    const ps_attention_call call{.q = q,
                                 .tokens = count,
                                 .position = position,
                                 .ring = s.window,
                                 .fresh = s.fresh,
                                 .begun = s.position,
                                 .rows = seen ? s.compressed.rows : nullptr,
                                 .rows_stride = q_of.dim,
                                 .rows_kind = s.compressed.rows_kind,
                                 .row_count = seen,
                                 .visible = nullptr,
                                 .picks = choosing ? picks : nullptr,
                                 .picks_width = choosing ? l.choice : 0,
                                 .cos = cos,
                                 .sin = sin,
                                 .out = q};
    ps_attend(l.sight, &call, threads);
}

// body(sequence, threads that it may use).  Sequences of one row each are divided among the threads; one that has more
// has all threads for itself.
template <class Body>
void each_sequence(const ps_sequence* const* sequences, i64 count, i64 rows, i64 threads, Body&& body) {
    const bool divided = count > 1 && rows == count;
    parallel_for(count, divided ? threads : 1, [&](i64 i) { body(*sequences[i], divided ? 1 : threads); });
}

}  // namespace

// x, out [rows, hidden]; cos, sin [rows, half].
PS_EXPORT void ps_layer_attention(const ps_layer* l, const ps_sequence* const* sequences, i64 sequence_count,
                                  const float* x, i64 rows, const float* cos, const float* sin, float* out,
                                  i64 threads) {
    const ps_queries& q_of = *l->queries;
    const i64 width = l->inputs->width, half = q_of.half, heads = q_of.heads * q_of.dim;
    const i64 index_heads = q_of.index_heads * q_of.index_dim, hidden = l->output->out_b->rows;
    const Between between(*l, rows);
    ps_project(l->inputs, x, rows, between.projected, threads);
    each_sequence(sequences, sequence_count, rows, threads, [&](const ps_sequence& s, i64 own) {
        const float* projected = between.projected + s.start * width;
        ps_keys_of(l->keys, projected, width, cos + s.start * half, sin + s.start * half, s.count, s.window, s.fresh,
                   s.position, own);
        // Before attention: the token that completes a window already sees that window's row.
        if (l->compressor) compress(l->compressor, s.compressed, projected, width, s, own);
        if (l->index_compressor) compress(l->index_compressor, s.index, projected, width, s, own);
    });
    for (i64 from = 0; from < rows; from += BLOCK) {
        const i64 to = std::min(rows, from + BLOCK);
        ps_queries_of(&q_of, between.projected + from * width, width, cos + from * half, sin + from * half, to - from,
                      between.q, between.index_q, threads);
        each_sequence(sequences, sequence_count, rows, threads, [&](const ps_sequence& s, i64 own) {
            const i64 first = std::max(from, s.start), last = std::min(to, s.start + s.count);
            if (first >= last) return;
            look(*l, s, first - s.start, last - first, between.q + (first - from) * heads,
                 between.index_q ? between.index_q + (first - from) * index_heads : nullptr,
                 between.picks + (first - from) * l->choice, between.projected + first * width, cos + first * half,
                 sin + first * half, own);
        });
        ps_output_of(l->output, between.q, to - from, out + from * hidden, threads);
    }
}
