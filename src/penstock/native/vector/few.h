// Integer formats with up to three inputs: weights are read as one stream, unpacked in registers and used at once.
#pragma once

#include "common.h"

namespace {

// The inputs of X results.
template <int X>
struct FewInputs {
    const i16* x[X];
    i64 stride;  // from block to block of x
    const float *scales[X], *sums[X];
};

// Formats with one scale per block: what block b adds to the lanes of X results.
template <class Format, int X>
PS_INLINE void add_block(const typename Format::Block& block, const FewInputs<X>& in, i64 b, F8* acc) {
    Sum sum[X], part[CHAINS][X];
    for (int c = 0; c < CHAINS; c++)
        for (int i = 0; i < X; i++) part[c][i] = no_sum();
    unrolled<8>([&] PS_EACH {
        const W32 w = Format::template weights<G>(block);
        Sum* to = part[G % CHAINS];
        for (int i = 0; i < X; i++) to[i] = add_dot(to[i], w, load(in.x[i] + b * in.stride + G * GROUP));
    });
    for (int i = 0; i < X; i++) {
        sum[i] = part[0][i];
        for (int c = 1; c < CHAINS; c++) sum[i] = add(sum[i], part[c][i]);
    }
    const F8 scale = Format::template scale<0>(block);
    for (int i = 0; i < X; i++) {
        F8 v = mul(floats(sum[i]), scale);
        const float* sums = in.sums[i] + b * SUMS;
        if constexpr (Format::MINIMUMS == 8) v = fnma(Format::minimum(block, 0), load(sums), v);
        if constexpr (Format::MINIMUMS == 16) {
            v = fnma(Format::minimum(block, 0), load(sums + 8), v);
            v = fnma(Format::minimum(block, 1), load(sums + 16), v);
        }
        acc[i] = fma(v, splat(in.scales[i][b]), acc[i]);
    }
}

// Before a block is used the next one is opened: what has to be prepared for it takes long to be ready.  Rows lie
// behind each other, so the weights are one stream from the first block of the first row to the last of the last.
template <class Format, int X>
PS_INLINE void few_blocks(const ps_weight& w, i64 first, i64 last, const FewInputs<X>& in, float* out, i64 out_stride) {
    const i64 blocks = w.columns / BLOCK, end = (last - first) * blocks;
    auto open = [&](i64 number) __attribute__((always_inline)) {
        const auto block = Format::open(w, first, least(number, end - 1));
        ask_ahead(block.p, Format::BYTES);
        return block;
    };
    typename Format::Block even = open(0), odd;
    for (i64 row = 0, number = 0; row < last - first; row++) {
        F8 acc[X];
        for (int i = 0; i < X; i++) acc[i] = splat(0);
        i64 b = 0;
        for (; b + 2 <= blocks; b += 2, number += 2) {
            odd = open(number + 1);
            add_block<Format, X>(even, in, b, acc);
            even = open(number + 2);
            add_block<Format, X>(odd, in, b + 1, acc);
        }
        if (b < blocks) {
            odd = open(++number);
            add_block<Format, X>(even, in, b, acc);
            even = odd;
        }
        for (int i = 0; i < X; i++) out[i * out_stride + row] = add_lanes(acc[i]);
    }
}

// Formats with a scale per group.  GROUPS < 8 in the last block of a row only.
template <class Format, int X, int GROUPS>
PS_INLINE void add_groups(const ps_weight& w, i64 j, i64 b, const FewInputs<X>& in, F8* acc) {
    const typename Format::Block block = Format::open(w, j, b);
    F8 v[X];
    if (GROUPS == 8) ask_ahead(block.p, Format::BYTES);
    for (int i = 0; i < X; i++) v[i] = splat(0);
    unrolled<GROUPS>([&] PS_EACH {
        const Pair weights = Format::template weights<G>(block);
        const F8 scale = Format::template scale<G>(block);
        for (int i = 0; i < X; i++)
            v[i] = fma(dot_floats(weights, load_pair(in.x[i] + b * in.stride + G * GROUP)), scale, v[i]);
    });
    for (int i = 0; i < X; i++) acc[i] = fma(v[i], splat(in.scales[i][b]), acc[i]);
}

template <class Format, int X>
PS_INLINE void add_row(const ps_weight& w, i64 j, const FewInputs<X>& in, F8* acc) {
    const i64 whole = w.columns / BLOCK;
    for (i64 b = 0; b < whole; b++) add_groups<Format, X, 8>(w, j, b, in, acc);
    switch (w.columns % BLOCK / GROUP) {
        case 1: return add_groups<Format, X, 1>(w, j, whole, in, acc);
        case 2: return add_groups<Format, X, 2>(w, j, whole, in, acc);
        case 3: return add_groups<Format, X, 3>(w, j, whole, in, acc);
        case 4: return add_groups<Format, X, 4>(w, j, whole, in, acc);
        case 5: return add_groups<Format, X, 5>(w, j, whole, in, acc);
        case 6: return add_groups<Format, X, 6>(w, j, whole, in, acc);
        case 7: return add_groups<Format, X, 7>(w, j, whole, in, acc);
    }
}

template <class Format, int X>
void few(const ps_weight& w, i64 first, i64 last, const Inputs& inputs, float* out, i64 out_stride) {
    FewInputs<X> in;
    in.stride = inputs.values_stride;
    for (int i = 0; i < X; i++) {
        const i64 row = inputs.row(i), block = row * inputs.blocks;
        in.x[i] = inputs.values[Format::ORDER] + row * BLOCK;
        in.scales[i] = inputs.scales + block;
        in.sums[i] = inputs.sums + block * SUMS;
    }
    if constexpr (Format::WHOLE) {
        few_blocks<Format, X>(w, first, last, in, out, out_stride);
    } else {
        for (i64 j = first; j < last; j++) {
            F8 acc[X];
            for (int i = 0; i < X; i++) acc[i] = splat(0);
            add_row<Format, X>(w, j, in, acc);
            for (int i = 0; i < X; i++) out[i * out_stride + j - first] = add_lanes(acc[i]);
        }
    }
}

}  // namespace
