// The way from a layer's input to its queries and its key/value row, and from the heads' results to its output.
#include "kernels.h"
#include "share.h"
#include "step_bytes.h"
#include "step_kernels.h"
#include "workspace.h"

// Of a low-rank query, or of the middle of the output.
i64 projections_floats(const ps_step_sizes& s, i64 rows) {
    return std::min(rows, STEP_ROWS) * std::max(s.projected_width, s.o_groups * s.o_rank);
}

PS_EXPORT void ps_project(const ps_projections* p, const float* x, i64 rows, float* out, i64 threads) {
    float* outs[MAX_PROJECTIONS];
    i64 strides[MAX_PROJECTIONS];
    for (i64 i = 0, at = 0; i < p->count; at += p->weights[i++]->rows) {
        outs[i] = out + at;
        strides[i] = p->width;
    }
    ps_products(p->weights, p->count, x, p->weights[0]->columns, rows, outs, strides, threads);
}

PS_EXPORT void ps_queries_run(const ps_queries* p, const float* projected, i64 stride, const float* cos,
                              const float* sin, i64 rows, float* q, float* index_q, i64 threads) {
    const ps_weight* weights[] = {p->q_b, p->index_q_b};
    const i64 strides[] = {p->heads * p->dim, p->index_heads * p->index_dim};
    for (i64 from = 0; from < rows; from += STEP_ROWS) {
        const i64 count = std::min(STEP_ROWS, rows - from);
        const float *in = projected + from * stride + p->column, *c = cos + from * p->half, *s = sin + from * p->half;
        float* low = workspace<BETWEEN_STEPS>(count * p->rank);
        float* outs[] = {q + from * strides[0], index_q ? index_q + from * strides[1] : nullptr};
        over_rows(count, p->rank / 8, threads,
                  [&](i64 a, i64 b) { kernels().steps.low_rank_rows(*p, in, stride, a, b, low); });
        ps_products(weights, index_q ? 2 : 1, low, p->rank, count, outs, strides, threads);
        over_rows(count * p->heads, p->dim / 6, threads, [&](i64 a, i64 b) {
            kernels().steps.finish_heads(outs[0], c, s, a, b, p->heads, p->dim, p->half, p->eps);
        });
        if (index_q)
            over_rows(count * p->index_heads, p->half, threads, [&](i64 a, i64 b) {
                kernels().steps.finish_index_heads(outs[1], c, s, a, b, p->index_heads, p->index_dim, p->half,
                                   p->low_precision != 0);
            });
    }
}

PS_EXPORT void ps_keys_run(const ps_keys* k, const float* projected, i64 stride, const float* cos, const float* sin,
                           i64 rows, const ps_ring* ring, void* fresh, i64 position, i64 threads) {
    over_rows(rows, k->dim, threads, [&](i64 a, i64 b) {
        kernels().steps.key_rows(*k, projected, stride, cos, sin, a, b, *ring, fresh, position,
                                 workspace<IN_A_PIECE>(padded(k->dim)));
    });
}

PS_EXPORT void ps_output_run(const ps_output* o, const float* x, i64 rows, float* out, i64 threads) {
    const i64 in = o->groups * o->out_a->columns, middle = o->out_a->rows, hidden = o->out_b->rows;
    for (i64 from = 0; from < rows; from += STEP_ROWS) {
        const i64 chunk = std::min(STEP_ROWS, rows - from);
        float *between = workspace<BETWEEN_STEPS>(chunk * middle), *to = out + from * hidden;
        ps_grouped_product(o->out_a, o->groups, x + from * in, in, chunk, between, middle, threads);
        ps_products(&o->out_b, 1, between, middle, chunk, &to, &hidden, threads);
    }
}
