// How much memory kernels work in.  Each of the functions below stands beside the code that takes the memory.
#pragma once

#include "api.h"

// The largest of every size in a model.
struct ps_step_sizes {
    i64 hidden, streams;
    i64 projected_width;  // of all that reads an attention layer's input, side by side
    i64 heads, dim, index_heads, index_dim, index_topk;  // the latter three 0 where nothing is indexed
    i64 o_groups, o_rank;
    i64 experts, experts_used, expert_width, shared_width;
    i64 ratio;          // tokens per compressed row
    i64 inputs;         // ps_input_bits of all weights' types, or'ed; -1: any
    i64 low_precision;  // 1: some weights round their inputs
};

// What a weight's type asks of the memory for inputs, as bits.
PS_EXPORT i64 ps_input_bits(i64 type);

// An upper bound of the bytes, of all threads together, that any call takes while a step of so many rows is computed:
// a whole layer, the head and the output matrix.  Results and what sequences remember are the caller's and not in it.
PS_EXPORT i64 ps_step_bytes(const ps_step_sizes* sizes, i64 rows, i64 threads);

// Floats kept by the calling thread from a layer's first step to its last.
i64 layer_floats(const ps_step_sizes& s, i64 rows);

// Floats kept by the calling thread between two steps.
i64 hyper_floats(const ps_step_sizes& s, i64 rows);
i64 projections_floats(const ps_step_sizes& s, i64 rows);
i64 router_floats(const ps_step_sizes& s, i64 rows);
i64 select_floats(i64 topk, i64 parts);
i64 select_parts(i64 threads);

// Floats kept by every thread for a piece of a step.
i64 attention_piece_floats(i64 heads, i64 dim);
i64 select_piece_floats(i64 topk, i64 heads, i64 dim);
i64 compress_piece_floats(i64 dim, i64 half, i64 ratio);
i64 route_piece_floats(i64 experts);
i64 decoded_floats(i64 columns);

// Bytes taken by the calling thread for one call.
i64 products_bytes(const ps_step_sizes& s, i64 count, i64 rows, i64 columns, i64 groups);
i64 experts_bytes(const ps_step_sizes& s, i64 rows);

// Bytes taken by every thread for a piece of it.
i64 products_piece_bytes();
i64 experts_piece_bytes();
