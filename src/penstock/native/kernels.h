// What each instruction set provides, and the form inputs of products have when they get there.
#pragma once

#include "products.h"

using i16 = std::int16_t;
using u8 = std::uint8_t;

constexpr i64 BLOCK = 256;  // inputs that share a scale
constexpr i64 GROUP = 32;   // inputs that every format can be cut into

// How the inputs of a block lie in memory.  SPLIT: in every group of 32 the sixteen with an even index first, because
// packed formats come apart into 16-bit lanes that way without a shuffle.  PLANES: two digits in place of a number,
// value = 255 · high + low with both in ±127: the 256 high ones as signed bytes, then the 256 low ones.  Bytes are
// multiplied by bytes where an instruction set has a product of four, and digits can change their sign.
enum Order { NATURAL = 0, SPLIT = 1, PLANES = 2 };
constexpr int ORDERS = 3;
constexpr i64 LARGEST = 127 * 255 + 127;  // of a rounded input

constexpr i64 SUMS = 24;  // per block: sums of the eight groups of 32, then of the sixteen of 16

// Rows of inputs.  Quantised rows have ceil(columns / 256) blocks, zeros behind the last column.  The same block of all
// rows lies together: rows a power of two apart would push each other out of the first-level cache.
struct Inputs {
    const float* x;  // row r at x + r · x_stride
    i64 x_stride;
    i64 columns, blocks;
    i64 values_stride;     // from a block of values to the next of the same row
    const i16* values[ORDERS];  // by Order; [blocks, rows, 256], null where nobody asks for it
    const float* scales;   // [rows, blocks]
    const float* sums;     // [rows, blocks, SUMS]: exact, they stay below 2²⁰
    const i64* index;      // the rows meant, or null: 0, 1, 2, …
    i64 rows;              // how many

    PS_INLINE i64 row(i64 i) const { return index ? index[i] : i; }
};

struct StepKernels;                       // step_kernels.h
extern const StepKernels baseline_steps;  // with what every processor of this kind has
extern const StepKernels avx2_steps;
extern const StepKernels avx512_steps;

// Everything that is computed with one instruction set.
struct Kernels {
    const char* name;
    const StepKernels& steps;

    // One row of `columns` floats to 16 bits.  values: by Order, any may be null; blocks are values_stride apart.
    void (*quantise)(const float* x, i64 columns, i16* const values[ORDERS], i64 values_stride, float* scales,
                     float* sums);

    // out[i · out_stride + j − first] = (input i) · (weight row j) for j in [first, last).
    // scratch: `scratch_bytes` bytes at a multiple of 64, this thread's own.
    void (*multiply)(const ps_weight& weight, i64 first, i64 last, const Inputs& inputs, float* out, i64 out_stride,
                     void* scratch);

    // out += weight · x, n elements, fused.
    void (*add_scaled)(float weight, const float* x, i64 n, float* out);

    i64 scratch_bytes;
    i64 panel;    // weight rows that many inputs are best multiplied with at a time
    bool planes;  // up to FEW rows of inputs are wanted in PLANES by the formats that can
    i64 few;      // rows of inputs that are few for a format without PLANES, FEW at least
};

const Kernels& scalar_kernels();
const Kernels& avx2_kernels();
const Kernels& avx512_vnni_kernels();
const Kernels& avx512_kernels();
const Kernels& neon_kernels();
const Kernels& neon_dot_kernels();

// The ones of this name, or the best where it is null or empty.  Null: unknown, or not on this processor.
const Kernels* kernels_named(const char* name);

// The ones in use.  See ps_instruction_set.
const Kernels& kernels();

constexpr i64 FEW = 4;  // rows of inputs with which weights of every format are used as they are read

// How a format's inputs must look.
struct Wants {
    bool quantised;
    Order order;
    bool planes;  // can use them
};
PS_INLINE constexpr Wants wants(i64 type) {
    switch (type) {
        case W_Q8_0: return {true, NATURAL, false};
        case W_IQ2_XXS:
        case W_Q2_K:
        case W_Q4_K: return {true, SPLIT, true};
        case W_MXFP4:
        case W_FP4: return {true, SPLIT, false};
        default: return {false, NATURAL, false};
    }
}

// Rows of inputs with which weights of a type are used as they are read.
PS_INLINE i64 few_inputs(i64 type) { return wants(type).planes ? FEW : kernels().few; }

PS_INLINE constexpr i64 row_bytes(i64 type, i64 columns) {
    switch (type) {
        case W_F32: return columns * 4;
        case W_F16:
        case W_BF16: return columns * 2;
        case W_Q8_0: return columns / 32 * 34;
        case W_Q2_K: return columns / 256 * 84;
        case W_Q4_K: return columns / 256 * 144;
        case W_IQ2_XXS: return columns / 256 * 66;
        case W_MXFP4: return columns / 32 * 17;
        case W_FP4: return columns / 2;
        case W_DECODED: return 0;  // nothing that the product itself reads
        default: return columns;
    }
}
