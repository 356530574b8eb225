// A whole attention sublayer in one call.  A decoded token has little to compute between two steps, so that leaving
// and entering the library for each of them would cost more than many of them take.
#include <algorithm>

#include "step_bytes.h"
#include "steps.h"
#include "threads.h"
#include "workspace.h"

namespace {

// The results between the steps, one after another in the layer's workspace: where each begins, in floats.  Queries are
// large, so only STEP_ROWS rows have them at a time.
struct Places {
    i64 picks, projected, q, index_q, floats;

    // Widths of a row: of all projections, of the queries, of the indexer's queries and of its picks.
    Places(i64 rows, i64 width, i64 q_width, i64 index_q_width, i64 topk) {
        const i64 block = std::min(rows, STEP_ROWS);
        floats = 0;
        picks = add(block * topk * static_cast<i64>(sizeof(i64) / sizeof(float)));
        projected = add(rows * width);
        q = add(block * q_width);
        index_q = add(block * index_q_width);
    }

  private:
    i64 add(i64 count) {
        const i64 at = floats;
        floats += (count + 15) / 16 * 16;
        return at;
    }
};

void compress(const ps_compressor* c, const ps_compressor_state& state, const float* projected, i64 stride,
              const ps_sequence_state& s, i64 threads) {
    ps_compress(c, projected, stride, s.count, s.position, state.frontier, state.fresh, state.kept, state.rows,
                state.rows_kind, threads);
}

// Attention of tokens [first, first + count) of a sequence.  q, index_q, picks, cos, sin, projected: theirs; q becomes
// the result.
void attend_block(const ps_attention_layer& l, const ps_sequence_state& s, i64 first, i64 count, float* q,
                  const float* index_q, i64* picks, const float* projected, const float* cos, const float* sin,
                  i64 threads) {
    const ps_queries& q_of = *l.queries;
    const i64 position = s.position + first, ratio = l.attention->ratio;
    const i64 seen = l.compressor ? (position + count) / ratio : 0;
    const bool picking = l.index_compressor && seen > l.topk;  // else all that can be seen are chosen
    if (picking) {
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
                            .count = l.topk,
                            .width = l.topk,
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
                                 .picks = picking ? picks : nullptr,
                                 .picks_width = picking ? l.topk : 0,
                                 .cos = cos,
                                 .sin = sin,
                                 .out = q};
    ps_attend(l.attention, &call, threads);
}

// body(sequence, threads that it may use).  Sequences of one row each are divided among the threads; one that has more
// has all threads for itself.
template <class Body>
void each_sequence(const ps_sequence_state* const* sequences, i64 count, i64 rows, i64 threads, Body&& body) {
    const bool divided = count > 1 && rows == count;
    parallel_for(count, divided ? threads : 1, [&](i64 i) { body(*sequences[i], divided ? 1 : threads); });
}

}  // namespace

i64 layer_floats(const ps_step_sizes& s, i64 rows) {
    return Places(rows, s.projected_width, s.heads * s.dim, s.index_heads * s.index_dim, s.index_topk).floats;
}

PS_EXPORT void ps_attention_layer_run(const ps_attention_layer* l, const ps_sequence_state* const* sequences,
                                      i64 sequence_count, const float* x, i64 rows, const float* cos,
                                      const float* sin, float* out, i64 threads) {
    const ps_queries& q_of = *l->queries;
    const bool indexed = l->index_compressor != nullptr;
    const i64 width = l->inputs->width, half = q_of.half, heads = q_of.heads * q_of.dim;
    const i64 index_heads = indexed ? q_of.index_heads * q_of.index_dim : 0, topk = indexed ? l->topk : 0;
    const i64 hidden = l->output->out_b->rows;
    const Places places(rows, width, heads, index_heads, topk);
    float* memory = workspace<IN_A_LAYER>(places.floats);
    float *all = memory + places.projected, *q = memory + places.q;
    float* index_q = indexed ? memory + places.index_q : nullptr;
    i64* picks = reinterpret_cast<i64*>(memory + places.picks);
    ps_project(l->inputs, x, rows, all, threads);
    each_sequence(sequences, sequence_count, rows, threads, [&](const ps_sequence_state& s, i64 own) {
        const float* projected = all + s.start * width;
        ps_keys_run(l->keys, projected, width, cos + s.start * half, sin + s.start * half, s.count, s.window, s.fresh,
                    s.position, own);
        // Before attention: the token that completes a window already sees that window's row.
        if (l->compressor) compress(l->compressor, s.compressed, projected, width, s, own);
        if (l->index_compressor) compress(l->index_compressor, s.index, projected, width, s, own);
    });
    for (i64 from = 0; from < rows; from += STEP_ROWS) {
        const i64 to = std::min(rows, from + STEP_ROWS);
        ps_queries_run(&q_of, all + from * width, width, cos + from * half, sin + from * half, to - from, q, index_q,
                       threads);
        each_sequence(sequences, sequence_count, rows, threads, [&](const ps_sequence_state& s, i64 own) {
            const i64 first = std::max(from, s.start), last = std::min(to, s.start + s.count);
            if (first >= last) return;
            attend_block(*l, s, first - s.start, last - first, q + (first - from) * heads,
                         index_q ? index_q + (first - from) * index_heads : nullptr, picks + (first - from) * topk,
                         all + first * width, cos + first * half, sin + first * half, own);
        });
        ps_output_run(l->output, q, to - from, out + from * hidden, threads);
    }
}
