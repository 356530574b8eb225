// What the steps of a layer do to rows, computed with one instruction set.
//
// steps/*.h are compiled once for each (step_kernels.cpp).  Sums are in eight lanes on every machine and in the order
// written there, so all give the same bits.  What these functions compute stands beside the entry points that share
// their rows out between threads: hyper.h, steps.h, products.h.
#pragma once

#include "hyper.h"
#include "pool.h"
#include "steps.h"

struct Inputs;  // kernels.h

constexpr i64 ATTENTION_BLOCK = 32;  // rows that attention looks at together

// Rows that are used together must not fall into the same few sets of the L1 cache, as they would 2 KiB apart.
PS_INLINE constexpr i64 attention_stride(i64 dim) { return padded(dim) + 2 * LANES; }

// A segment's tokens on their way into a compressor.
struct CompressTask {
    const ps_compressor& c;
    const float* projected;  // [count, stride]
    i64 stride, position;
    const ps_ring& frontier;  // [value | score] of positions before `position`
    void* rows;
    i64 rows_kind;

    // The token at position p, channels from `column` on.
    PS_INLINE Candidate candidate(i64 p, i64 column) const {
        if (p < position) {
            const float* row = static_cast<const float*>(frontier.data) + p % frontier.capacity * frontier.width;
            return {row + column, row + c.width + column, nullptr};
        }
        const float* row = projected + (p - position) * stride + column;
        return {row + c.value_column, row + c.score_column, c.ape + p % c.ratio * c.width + column};
    }
};

// The row that a window becomes, and the cos and sin it is rotated by.
PS_INLINE constexpr i64 compressed_row_floats(i64 dim, i64 half) { return padded(dim) + padded(2 * half); }

struct StepKernels {
    void (*norm_rows)(const float* x, const float* weight, i64 first, i64 last, i64 dim, float eps, float* out);

    // mix holds the projected streams at first, and [pre | post | comb] in the end.  normed: those that were projected
    // were normed, else that is made up for here.
    void (*enter_rows)(const ps_hyper& h, bool normed, const float* streams, i64 first, i64 last, float* x, float* mix);
    void (*leave_rows)(const float* y, float* streams, const float* mix, i64 first, i64 last, i64 n, i64 hidden);
    void (*head_rows)(const ps_head& h, const float* mixes, const float* streams, i64 first, i64 last, float* x);

    void (*low_rank_rows)(const ps_queries& p, const float* x, i64 stride, i64 first, i64 last, float* out);
    // Heads [first, last) of all rows' heads, in place.
    void (*finish_heads)(float* q, const float* cos, const float* sin, i64 first, i64 last, i64 heads, i64 dim, i64 half,
                         float eps);
    void (*finish_index_heads)(float* q, const float* cos, const float* sin, i64 first, i64 last, i64 heads, i64 dim,
                               i64 half, bool low_precision);
    // row: padded(dim) floats to work in
    void (*key_rows)(const ps_keys& k, const float* projected, i64 stride, const float* cos, const float* sin, i64 first,
                     i64 last, const ps_ring& ring, void* fresh, i64 position, float* row);

    // row: compress_piece_floats to work in
    void (*compress_window)(const CompressTask& t, i64 window, float* row);
    // Scores of rows [first, first + count): the sum over heads of gate · max(0, q · row).
    // block [count, padded dim]; hits [count, padded heads], zeros behind the heads
    void (*score_rows)(const ps_index& a, i64 token, i64 first, i64 count, float* block, float* hits, float* scores);
    // scratch: attention_piece_floats
    void (*attend_token)(const ps_attention& a, const ps_attention_call& c, i64 token, i64 first_head, i64 heads,
                         float* scratch);

    // out[i · out_stride + j] = (input i) · (row j of w) for n rows of w, in the order of dot.h.
    void (*multiply_floats)(const Inputs& inputs, const float* w, i64 n, float* out, i64 out_stride);
    // silu(min(gate, limit)) · clamp(up, ±limit) for n elements.
    void (*swiglu)(const float* gate, const float* up, i64 n, float limit, float* out);

    i64 (*logits_top)(const float* x, i64 n, float* top);
    // out = e^((x − top) · factor), n values; returns their sum.  out may be null.
    double (*weigh_logits)(const float* x, i64 n, float top, float factor, float* out);
};
