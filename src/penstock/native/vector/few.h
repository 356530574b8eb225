// Integer formats with up to four inputs: weights are read as one stream, unpacked in registers and used at once.
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

template <class Format>
concept AsBytes = requires { Format::SCALED; };  // see formats/planes.h

// Formats with one scale per block: the sums of block b, in 16-bit lanes or as bytes.
template <class Format, int X, int R>
    requires(!AsBytes<Format>)
PS_INLINE void sum_block(const typename Format::Block (&block)[R], const FewInputs<X>& in, i64 b, F8 (&sum)[X][R]) {
    Sum part[CHAINS][X][R];
    for (auto& chain : part)
        for (auto& sums : chain)
            for (Sum& one : sums) one = no_sum();
    unrolled<8>([&] PS_EACH {
        W32 x[X];
        for (int i = 0; i < X; i++) x[i] = load(in.x[i] + b * in.stride + G * GROUP);
        for (int r = 0; r < R; r++) {
            const W32 w = Format::template weights<G>(block[r]);
            for (int i = 0; i < X; i++) part[G % CHAINS][i][r] = add_dot(part[G % CHAINS][i][r], w, x[i]);
        }
    });
    for (int i = 0; i < X; i++)
        for (int r = 0; r < R; r++) {
            for (int c = 1; c < CHAINS; c++) part[0][i][r] = add(part[0][i][r], part[c][i][r]);
            sum[i][r] = floats(part[0][i][r]);
        }
}

#if defined(PENSTOCK_PLANES)
template <class Format, int X, int R>
    requires AsBytes<Format>
PS_INLINE void sum_block(const typename Format::Block (&block)[R], const FewInputs<X>& in, i64 b, F8 (&sum)[X][R]) {
    constexpr i64 UNIT = 64;
    ByteSum high[X][R], low[X][R];
    for (int i = 0; i < X; i++)
        for (int r = 0; r < R; r++) high[i][r] = low[i][r] = no_byte_sum();
    unrolled<BLOCK / UNIT>([&] PS_EACH {
        Bytes x_high[X], x_low[X];
        for (int i = 0; i < X; i++) {
            const u8* planes = reinterpret_cast<const u8*>(in.x[i] + b * in.stride) + G * UNIT;
            x_high[i] = load_unit(planes);
            x_low[i] = load_unit(planes + BLOCK);
        }
        for (int r = 0; r < R; r++) {
            const Bytes w = Format::template weights<G>(block[r]);
            for (int i = 0; i < X; i++) {
                const Bytes h = Format::template inputs<G>(block[r], x_high[i]);
                const Bytes l = Format::template inputs<G>(block[r], x_low[i]);
                if constexpr (Format::SCALED) {
                    high[i][r] = add_bytes(high[i][r], w, h);
                    low[i][r] = add_bytes(low[i][r], w, l);
                } else {
                    const auto scales = Format::template scales<G>(block[r]);
                    high[i][r] = add_scaled_sum(high[i][r], add_bytes(no_byte_sum(), w, h), scales);
                    low[i][r] = add_scaled_sum(low[i][r], add_bytes(no_byte_sum(), w, l), scales);
                }
            }
        }
    });
    for (int i = 0; i < X; i++)
        for (int r = 0; r < R; r++) sum[i][r] = join_digits(high[i][r], low[i][r]);
}
#endif

// What block b adds to the lanes of X results of R rows.
template <class Format, int X, int R>
PS_INLINE void add_block(const typename Format::Block (&block)[R], const FewInputs<X>& in, i64 b, F8 (&acc)[X][R]) {
    F8 sum[X][R];
    sum_block<Format, X, R>(block, in, b, sum);
    for (int r = 0; r < R; r++) {
        const F8 scale = Format::scale(block[r]);
        for (int i = 0; i < X; i++) {
            F8 v = mul(sum[i][r], scale);
            const float* sums = in.sums[i] + b * SUMS;
            if constexpr (Format::MINIMUMS == 8) v = fnma(Format::minimum(block[r], 0), load(sums), v);
            if constexpr (Format::MINIMUMS == 16) {
                v = fnma(Format::minimum(block[r], 0), load(sums + 8), v);
                v = fnma(Format::minimum(block[r], 1), load(sums + 16), v);
            }
            acc[i][r] = fma(v, splat(in.scales[i][b]), acc[i][r]);
        }
    }
}

// R streams of `rows` rows each, which begin `rows` rows apart.  Before a block is used the next one is opened: what has
// to be prepared for it takes long to be ready.  Rows lie behind each other, so a stream goes from the first block of its
// first row to the last of its last.
template <class Format, int X, int R>
PS_INLINE void few_blocks(const ps_weight& w, i64 first, i64 rows, const FewInputs<X>& in, float* out, i64 out_stride) {
    using Blocks = typename Format::Block[R];
    const i64 blocks = w.columns / BLOCK, end = rows * blocks;
    auto open = [&](i64 number, Blocks& block) __attribute__((always_inline)) {
        for (int r = 0; r < R; r++) {
            block[r] = Format::open(w, first + r * rows, least(number, end - 1));
            ask_ahead(block[r].p, Format::BYTES);
        }
    };
    Blocks even, odd;
    open(0, even);
    for (i64 row = 0, number = 0; row < rows; row++) {
        F8 acc[X][R];
        for (auto& sums : acc)
            for (F8& sum : sums) sum = splat(0);
        i64 b = 0;
        for (; b + 2 <= blocks; b += 2, number += 2) {
            open(number + 1, odd);
            add_block<Format, X, R>(even, in, b, acc);
            open(number + 2, even);
            add_block<Format, X, R>(odd, in, b + 1, acc);
        }
        if (b < blocks) {
            open(++number, odd);
            add_block<Format, X, R>(even, in, b, acc);
            for (int r = 0; r < R; r++) even[r] = odd[r];
        }
        for (int i = 0; i < X; i++)
            for (int r = 0; r < R; r++) out[i * out_stride + r * rows + row] = add_lanes(acc[i][r]);
    }
}

// Formats with a scale per group: rows j and j + apart, … up to R of them.  GROUPS < 8 in the last block of a row only.
template <class Format, int X, int R, int GROUPS>
PS_INLINE void add_groups(const ps_weight& w, i64 j, i64 apart, i64 b, const FewInputs<X>& in, F8 (&acc)[X][R]) {
    typename Format::Block block[R];
    F8 v[X][R];
    for (int r = 0; r < R; r++) {
        block[r] = Format::open(w, j + r * apart, b);
        if (GROUPS == 8) ask_ahead(block[r].p, Format::BYTES);
        for (int i = 0; i < X; i++) v[i][r] = splat(0);
    }
    unrolled<GROUPS>([&] PS_EACH {
        Pair x[X];
        for (int i = 0; i < X; i++) x[i] = load_pair(in.x[i] + b * in.stride + G * GROUP);
        for (int r = 0; r < R; r++) {
            const Pair weights = Format::template weights<G>(block[r]);
            const F8 scale = Format::template scale<G>(block[r]);
            for (int i = 0; i < X; i++) v[i][r] = fma(dot_floats(weights, x[i]), scale, v[i][r]);
        }
    });
    for (int i = 0; i < X; i++)
        for (int r = 0; r < R; r++) acc[i][r] = fma(v[i][r], splat(in.scales[i][b]), acc[i][r]);
}

template <class Format, int X, int R>
PS_INLINE void few_rows(const ps_weight& w, i64 j, i64 apart, const FewInputs<X>& in, float* out, i64 out_stride) {
    F8 acc[X][R];
    for (int i = 0; i < X; i++)
        for (int r = 0; r < R; r++) acc[i][r] = splat(0);
    const i64 whole = w.columns / BLOCK;
    for (i64 b = 0; b < whole; b++) add_groups<Format, X, R, 8>(w, j, apart, b, in, acc);
    switch (w.columns % BLOCK / GROUP) {
        case 1: add_groups<Format, X, R, 1>(w, j, apart, whole, in, acc); break;
        case 2: add_groups<Format, X, R, 2>(w, j, apart, whole, in, acc); break;
        case 3: add_groups<Format, X, R, 3>(w, j, apart, whole, in, acc); break;
        case 4: add_groups<Format, X, R, 4>(w, j, apart, whole, in, acc); break;
        case 5: add_groups<Format, X, R, 5>(w, j, apart, whole, in, acc); break;
        case 6: add_groups<Format, X, R, 6>(w, j, apart, whole, in, acc); break;
        case 7: add_groups<Format, X, R, 7>(w, j, apart, whole, in, acc); break;
    }
    for (int i = 0; i < X; i++)
        for (int r = 0; r < R; r++) out[i * out_stride + r * apart] = add_lanes(acc[i][r]);
}

#if defined(PENSTOCK_PAIRS)
template <class Format>
concept SideBySide = requires(const typename Format::Block& block) { Format::template two_scales<0>(block, block); };

// Whether pairs are faster than rows in streams.
template <class Format, int X>
constexpr bool PAIRED = SideBySide<Format> && (X > 1 || Format::STREAMS == 1);

// The same for PAIRS pairs of rows from j on, the two of a pair side by side in vectors twice as wide: where inputs are
// several, multiplying is what takes the time, and there are as many units for wide vectors as for narrow ones.  Each half
// computes what it would alone.
template <class Format, int X, int PAIRS, int GROUPS>
PS_INLINE void add_pair_groups(const ps_weight& w, i64 j, i64 b, const FewInputs<X>& in, Sides (&acc)[X][PAIRS]) {
    typename Format::Block first[PAIRS], second[PAIRS];
    Sides v[X][PAIRS];
    for (int r = 0; r < PAIRS; r++) {
        first[r] = Format::open(w, j + 2 * r, b), second[r] = Format::open(w, j + 2 * r + 1, b);
        for (int i = 0; i < X; i++) v[i][r] = splat_sides(0);
        if (GROUPS == 8) {
            ask_ahead(first[r].p, Format::BYTES);
            ask_ahead(second[r].p, Format::BYTES);
        }
    }
    unrolled<GROUPS>([&] PS_EACH {
        V low[PAIRS], high[PAIRS];
        Sides scale[PAIRS];
        for (int r = 0; r < PAIRS; r++) {
            low[r] = Format::template two_weights<G, 0>(first[r], second[r]);
            high[r] = Format::template two_weights<G, 1>(first[r], second[r]);
            scale[r] = Format::template two_scales<G>(first[r], second[r]);
        }
        for (int i = 0; i < X; i++) {
            const i16* x = in.x[i] + b * in.stride + G * GROUP;
            const V x_low = load_input(x), x_high = load_input(x + GROUP / 2);
            for (int r = 0; r < PAIRS; r++)
                v[i][r] = fma(side_floats(add_dot_sides(dot(low[r], x_low), high[r], x_high)), scale[r], v[i][r]);
        }
    });
    for (int i = 0; i < X; i++)
        for (int r = 0; r < PAIRS; r++) acc[i][r] = fma(v[i][r], splat_sides(in.scales[i][b]), acc[i][r]);
}

template <class Format, int X, int PAIRS>
PS_INLINE void few_pairs(const ps_weight& w, i64 j, const FewInputs<X>& in, float* out, i64 out_stride) {
    Sides acc[X][PAIRS];
    for (auto& sums : acc)
        for (Sides& one : sums) one = splat_sides(0);
    const i64 whole = w.columns / BLOCK;
    for (i64 b = 0; b < whole; b++) add_pair_groups<Format, X, PAIRS, 8>(w, j, b, in, acc);
    switch (w.columns % BLOCK / GROUP) {
        case 1: add_pair_groups<Format, X, PAIRS, 1>(w, j, whole, in, acc); break;
        case 2: add_pair_groups<Format, X, PAIRS, 2>(w, j, whole, in, acc); break;
        case 3: add_pair_groups<Format, X, PAIRS, 3>(w, j, whole, in, acc); break;
        case 4: add_pair_groups<Format, X, PAIRS, 4>(w, j, whole, in, acc); break;
        case 5: add_pair_groups<Format, X, PAIRS, 5>(w, j, whole, in, acc); break;
        case 6: add_pair_groups<Format, X, PAIRS, 6>(w, j, whole, in, acc); break;
        case 7: add_pair_groups<Format, X, PAIRS, 7>(w, j, whole, in, acc); break;
    }
    for (int i = 0; i < X; i++)
        if constexpr (PAIRS == 2)
            store_four(out + i * out_stride, acc[i][0], acc[i][1]);
        else
            for (int side = 0; side < 2; side++) out[i * out_stride + side] = add_lanes(acc[i][0], side);
}
#else
template <class Format, int X>
constexpr bool PAIRED = false;
#endif

// One input: as many streams at a time as the format is fastest with (Format::STREAMS), each a part of the rows.
template <class Format, int X, Order ORDER = Format::ORDER>
void few(const ps_weight& w, i64 first, i64 last, const Inputs& inputs, float* out, i64 out_stride) {
    FewInputs<X> in;
    in.stride = inputs.values_stride;
    for (int i = 0; i < X; i++) {
        const i64 row = inputs.row(i), block = row * inputs.blocks;
        in.x[i] = inputs.values[ORDER] + row * BLOCK;
        in.scales[i] = inputs.scales + block;
        in.sums[i] = inputs.sums + block * SUMS;
    }
    const i64 apart = (last - first) / Format::STREAMS;
    if constexpr (Format::WHOLE) {
        i64 done = 0;
        if constexpr (X == 1) {
            if (apart) few_blocks<Format, X, Format::STREAMS>(w, first, apart, in, out, out_stride);
            done = apart * Format::STREAMS;
        }
        if (done < last - first)
            few_blocks<Format, X, 1>(w, first + done, last - first - done, in, out + done, out_stride);
    } else {
        i64 j = 0;
        if constexpr (PAIRED<Format, X>) {
            for (; j + 4 <= last - first; j += 4) few_pairs<Format, X, 2>(w, first + j, in, out + j, out_stride);
            for (; j + 2 <= last - first; j += 2) few_pairs<Format, X, 1>(w, first + j, in, out + j, out_stride);
        } else if constexpr (X == 1) {
            for (; j < apart; j++) few_rows<Format, X, Format::STREAMS>(w, first + j, apart, in, out + j, out_stride);
            j *= Format::STREAMS;
        }
        for (; j < last - first; j++) few_rows<Format, X, 1>(w, first + j, 0, in, out + j, out_stride);
    }
}

}  // namespace
