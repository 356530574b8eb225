// Weights from one stored type to another: rows are decoded to float32, and encoded with the least error found.
//
// The same bytes come out on every machine: all arithmetic is float32 in a fixed order, nothing is fused, and a row
// depends on itself and its importance alone.
#pragma once

#include "products.h"

using u8 = std::uint8_t;

// What rows can be encoded to: numbers of GGUF.
enum EncodedKind : i64 {
    E_F32 = 0,
    E_F16 = 1,
    E_Q4_0 = 2,
    E_Q5_0 = 6,
    E_Q5_1 = 7,
    E_Q8_0 = 8,
    E_Q2_K = 10,
    E_Q3_K = 11,
    E_Q4_K = 12,
    E_Q5_K = 13,
    E_Q6_K = 14,
    E_IQ2_XXS = 16,
    E_IQ4_NL = 20,
    E_BF16 = 30,
    E_MXFP4 = 39,
};

struct Encoders {
    // Row `row` of a weight as float32 [columns].
    void (*decode)(const ps_weight& weight, i64 row, float* out);

    // Whether no magnitude of x [columns] is above `limit`, and none is NaN.
    bool (*within)(const float* x, i64 columns, float limit);

    // x [columns], a whole number of the type's blocks, all finite if that has more than one number.  importance [columns]: how much the square
    // of each column's error counts, positive; or null: all alike.  Types that have only one way to be encoded do not
    // look at it.
    void (*encode)(i64 type, const float* x, const float* importance, i64 columns, u8* out);
};

const Encoders& plain_encoders();
const Encoders& avx2_encoders();
const Encoders& avx512_encoders();

// Those of the same instruction set.
struct Kernels;
const Encoders& encoders_of(const Kernels& kernels);

// Rows [first, last) of a weight as `type`, to out.  importance: see Encoders.  A weight of FP4 becomes MXFP4 by moving
// nibbles.  Returns the first row that holds a NaN or a magnitude above `limit` (negative: anything goes, where `type` has
// it), or −1; what is written for such a row means nothing.
PS_EXPORT i64 ps_encode(const ps_weight* weight, i64 first, i64 last, i64 type, const float* importance, float limit,
                        void* out, i64 threads);
