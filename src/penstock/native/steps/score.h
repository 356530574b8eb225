// The indexer's scores.
#pragma once

#include "../dot.h"
#include "../step_kernels.h"

namespace {

// Scores of rows [first, first + count): the sum over heads of gate · max(0, q · row).
// block [count, padded dim]; hits [count, padded heads], zeros behind the heads.
void score_rows(const ps_index& a, i64 token, i64 first, i64 count, float* block, float* hits, float* scores) {
    const i64 width = padded(a.dim), heads = padded(a.heads);
    const float* gates = a.gates + token * a.gates_stride;
    const Rows rows{a.rows, a.rows_stride, a.rows_kind};
    for (i64 i = 0; i < count; i++) widen(rows, first + i, a.dim, block + i * width);
    dot_all(block, width, count, a.q + token * a.heads * a.dim, a.dim, a.heads, a.dim, hits, heads);
    for (i64 i = 0; i < count; i++) {
        vf sum = {};
        for (i64 h = 0; h < a.heads; h += LANES)
            sum = fma(load(gates + h, a.heads - h), larger(load(hits + i * heads + h), vf{}), sum);
        scores[i] = sum_lanes(sum);
    }
}

}  // namespace
