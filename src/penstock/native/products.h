// Products with stored weights: the bytes of the file are multiplied as they are, never decoded to a matrix first.
//
// A row's result is the same bits whatever else is in the call: other rows, other weights, any number of threads.
// For the integer formats (Q8_0, IQ2_XXS, Q2_K, Q4_K, MXFP4, FP4) inputs are rounded to 16 bits, with one float32
// scale per 256 elements: an error of at most 1/65,024 of the largest input of those 256.  A row of inputs that holds a
// NaN or an infinity has NaN for all its results.  The other formats multiply float32 with float32.
//
// A weight of any other format is W_DECODED: its rows are asked for as float32, a slab at a time, used and dropped.  It may
// stand wherever a weight may.
//
// Weights may lie at any address.  `threads` is the most threads to use, the caller's own included; see threads.h.
#pragma once

#include "api.h"

// Numbers of GGUF where it has the format.
enum WeightKind : i64 {
    W_DECODED = -1,  // by ps_weight::decode
    W_F32 = 0,
    W_F16 = 1,
    W_Q8_0 = 8,
    W_Q2_K = 10,
    W_Q4_K = 12,
    W_IQ2_XXS = 16,
    W_BF16 = 30,
    W_MXFP4 = 39,
    W_FP8 = 1000,  // e4m3, one scale per 128 × 128 weights
    W_FP4 = 1001,  // e2m1 pairs, low nibble first, one scale per 32 weights of a row
};

struct ps_weight {
    const void* data;
    const void* scale;  // E8M0 bytes of FP8 and FP4, else null
    i64 type;           // WeightKind
    i64 rows, columns;  // columns: a whole number of the format's blocks
    i64 round_input;    // 0, or: inputs are rounded to FP8 in groups of that many channels first (low_precision.h)
    // Of W_DECODED only: rows [first, last) as float32 [last - first, columns] to out, `number` saying which weight is
    // meant.  Several threads may call it at the same time.  It must not come back into this library.
    void (*decode)(i64 number, i64 first, i64 last, float* out);
    i64 number;
    // Null, or [parts, columns + 1]: every product adds the squares of its inputs by column, and behind them their
    // number.  Parts are the groups of a grouped product, else there is one (observe.h).
    float* squares;
};

struct ps_expert {
    const ps_weight *gate, *up, *down;
};

// Several weights on the same input: out_i[r · out_strides[i] + j] = x_r · (row j of weight i).
// x: `rows` rows of as many columns as every weight has, x_stride apart.
PS_EXPORT void ps_products(const ps_weight* const* weights, i64 count, const float* x, i64 x_stride, i64 rows,
                           float* const* outs, const i64* out_strides, i64 threads);

// A weight whose rows are split into `groups` equal parts, each with its own input: x [rows, groups, columns], rows
// x_stride apart → out [rows, weight rows], rows out_stride apart.
PS_EXPORT void ps_grouped_product(const ps_weight* weight, i64 groups, const float* x, i64 x_stride, i64 rows,
                                  float* out, i64 out_stride, i64 threads);

// Routed experts.  ids, weights [rows, slots]; table[id]: the expert with that id, of `experts` in all.  Ids whose place there
// is null are left out.  out_r = Σ weight · down(silu(min(gate, limit)) · clamp(up, ±limit)), over the row's experts in
// ascending order of id, those with the same id in order of slot; then, unless it is null, the shared expert with its own
// limit.  x, out [rows, hidden], contiguous.  `more`: is added to what out holds.
//
// Where `down` rounds its inputs, the routing weight is multiplied into what is rounded, and the term is added as it is.
PS_EXPORT void ps_experts(const ps_expert* const* table, i64 experts, const i64* ids, const float* weights, i64 slots,
                          float limit, const ps_expert* shared, float shared_limit, const float* x, i64 rows,
                          float* out, i64 more, i64 threads);

// The terms of that sum one by one, for experts that come in any order.  terms [rows · slots + rows, hidden]: an expert's
// go to their rows and slots, the shared one's behind all of those.  weights [rows, slots] may be null unless some `down`
// rounds its inputs: terms are not weighted, except in that case.
PS_EXPORT void ps_expert_terms(const ps_expert* const* table, i64 experts, const i64* ids, const float* weights,
                               i64 slots, float limit, const ps_expert* shared, float shared_limit, const float* x,
                               i64 rows, float* terms, i64 threads);

// And their sum, once all terms are there: to the bit what `ps_experts` gives for all of them at once.  weights is null
// where terms are weighted already.
PS_EXPORT void ps_expert_sum(const i64* ids, const float* weights, i64 rows, i64 slots, i64 shared, const float* terms,
                             i64 hidden, float* out, i64 threads);

// "scalar", "avx2", "avx512_vnni", "avx512", "neon" or "neon_dot": what the products use.  Chosen at the first use: the best
// this processor has, or the one named in PENSTOCK_ISA.  Null when that names one that is unknown or that this processor lacks.
PS_EXPORT const char* ps_instruction_set();
