// Integer formats with many inputs: a panel of weights is unpacked into the first-level cache and serves them all, a tile
// of inputs and weights at a time.
//
// A vector holds sixteen columns of SIDES weight rows side by side, and an input's sixteen columns as often: each side's
// eight lanes are then those of one result, and nothing has to be folded.
//
// What binds is multiplication: 32 products a cycle on Zen 4.  With what follows a block (scales, minimums) and unpacking,
// 512 inputs reach 17 – 18 where a block has one scale.  With a scale per group a third of the multiplier's time goes to
// scales, which leaves 21 at most: 14 measured (Q8_0).  See benchmarks/products.py.
#pragma once

#include "../formats/blocks.h"
#include "common.h"

namespace {

constexpr i64 PANEL = 16;    // weight rows unpacked together
constexpr i64 DEPTH = 512;   // columns unpacked together: 16 KiB of integers
constexpr i64 INPUTS = 256;  // inputs that a panel serves before it is unpacked again
constexpr i64 TILE_ROWS = TILE_WEIGHTS * SIDES;

static_assert(DEPTH % BLOCK == 0 && PANEL % TILE_ROWS == 0);

// Weights of a panel, unpacked: the integers, and what blocks (or groups) of them are multiplied by, for every lane.
struct Panel {
    alignas(64) i16 weights[PANEL / SIDES][DEPTH / STEP][SIDES][STEP];
    alignas(64) float scales[PANEL / SIDES][DEPTH / GROUP][SIDES][LANES];
    alignas(64) float minimums[PANEL / SIDES][DEPTH / BLOCK][2][SIDES][LANES];
};

// Lanes of the results of a panel with INPUTS inputs, between one depth and the next.
struct Lanes {
    alignas(64) float lanes[INPUTS][PANEL][LANES];
};

template <class Format>
PS_INLINE void unpack_block(const typename Format::Block& block, i64 groups, i64 b, i64 j, Panel& panel) {
    const i64 pair = j / SIDES, side = j % SIDES;
#if defined(PENSTOCK_GRID_UNITS)
    if constexpr (requires { Format::template halves<0>(block); })
        unrolled<4>([&] PS_EACH {  // two groups at once
            const Halves two = Format::template halves<G>(block);
            i16(*to)[SIDES][STEP] = &panel.weights[pair][b * (BLOCK / STEP) + 4 * G];
            store(to[0][side], to[2][side], two.even);
            store(to[1][side], to[3][side], two.odd);
        });
    else
#endif
    unrolled<8>([&] PS_EACH {
        if (Format::WHOLE || G < groups) {
            const i64 group = b * (BLOCK / GROUP) + G;
            i16(*to)[SIDES][STEP] = &panel.weights[pair][group * (GROUP / STEP)];
            store(to[0][side], to[1][side], Format::template weights<G>(block));
            if constexpr (!Format::WHOLE) store(panel.scales[pair][group][side], Format::template scale<G>(block));
        }
    });
    if constexpr (Format::WHOLE) store(panel.scales[pair][b * (BLOCK / GROUP)][side], Format::scale(block));
    if constexpr (Format::MINIMUMS >= 8) store(panel.minimums[pair][b][0][side], Format::minimum(block, 0));
    if constexpr (Format::MINIMUMS == 16) store(panel.minimums[pair][b][1][side], Format::minimum(block, 1));
}

struct TileInput {
    const i16* x;
    const float *scales, *sums;
    float (*lanes)[LANES];  // [PANEL]
};

// X inputs with TILE_ROWS weight rows from j on, over the `columns` of a panel.  stride: from block to block of x.
// A function of its own: inlined into its callers, the compiler runs out of registers.
template <class Format, int X>
__attribute__((noinline)) void tile(const Panel& panel, i64 j, i64 columns, const TileInput* in, i64 stride) {
    constexpr int W = TILE_WEIGHTS;
    const i64 pair = j / SIDES;
    for (i64 b = 0; b * BLOCK < columns; b++) {
        const i16* x[X];
        for (int i = 0; i < X; i++) x[i] = in[i].x + b * stride;
        const i16* w[W];
        for (int k = 0; k < W; k++) w[k] = panel.weights[pair + k][b * (BLOCK / STEP)][0];
        Sides v[X][W];
        if constexpr (Format::WHOLE) {
            SideSum sum[X][W];
            for (int i = 0; i < X; i++)
                for (int k = 0; k < W; k++) sum[i][k] = no_side_sum();
#pragma GCC unroll 4
            for (i64 at = 0; at < BLOCK; at += STEP) {
                V a[X];
                for (int i = 0; i < X; i++) a[i] = load_input(x[i] + at);
                for (int k = 0; k < W; k++) {
                    const V b = load_weights(w[k] + at * SIDES);
                    for (int i = 0; i < X; i++) sum[i][k] = add_dot(sum[i][k], b, a[i]);
                }
            }
            for (int k = 0; k < W; k++) {
                const Sides scale = load_sides(panel.scales[pair + k][b * (BLOCK / GROUP)][0]);
                for (int i = 0; i < X; i++) v[i][k] = mul(side_floats(sum[i][k]), scale);
            }
        } else {
            for (int i = 0; i < X; i++)
                for (int k = 0; k < W; k++) v[i][k] = splat_sides(0);
            const i64 groups = least(8, (columns - b * BLOCK) / GROUP);
            for (i64 g = 0; g < groups; g++) {
                V first[X], second[X];
                for (int i = 0; i < X; i++) {
                    first[i] = load_input(x[i] + g * GROUP);
                    second[i] = load_input(x[i] + g * GROUP + STEP);
                }
                for (int k = 0; k < W; k++) {
                    const i16* at = w[k] + g * GROUP * SIDES;
                    const V one = load_weights(at), two = load_weights(at + STEP * SIDES);
                    const Sides scale = load_sides(panel.scales[pair + k][b * (BLOCK / GROUP) + g][0]);
                    for (int i = 0; i < X; i++)
                        v[i][k] = fma(side_floats(add_dot(dot(one, first[i]), two, second[i])), scale, v[i][k]);
                }
            }
        }
        for (int i = 0; i < X; i++) {
            const float* sums = in[i].sums + b * SUMS;
            const Sides scale = splat_sides(in[i].scales[b]);
            float(*lanes)[LANES] = in[i].lanes + j;
            for (int k = 0; k < W; k++) {
                const float(*minimums)[SIDES][LANES] = panel.minimums[pair + k][b];
                Sides value = v[i][k];
                if constexpr (Format::MINIMUMS == 8) value = fnma(load_sides(minimums[0][0]), load_each(sums), value);
                if constexpr (Format::MINIMUMS == 16) {
                    value = fnma(load_sides(minimums[0][0]), load_each(sums + 8), value);
                    value = fnma(load_sides(minimums[1][0]), load_each(sums + 16), value);
                }
                float* to = lanes[k * SIDES];
                store_sides(to, fma(value, scale, load_sides(to)));
            }
        }
    }
}

template <class Format, int X>
PS_INLINE void tile_row(const Panel& panel, i64 rows, i64 columns, const TileInput* in, i64 stride) {
    for (i64 j = 0; j < rows; j += TILE_ROWS) tile<Format, X>(panel, j, columns, in, stride);
}

// Asks for what unpack_block will read of a row.  Reads nothing: there may be no such row.
template <class Format>
PS_INLINE void ask_for_row(const ps_weight& w, i64 row, i64 block) {
    const u8* p = block_address<Format>(w, row, block);
    for (i64 at = 0; at < Format::BYTES * (DEPTH / BLOCK) + 63; at += 64) prefetch(p + at);
}

// Rows of the panel behind the last one are computed too, from whatever they hold, and not used.
template <class Format>
void many(const ps_weight& w, i64 first, i64 rows, const Inputs& in, i64 from, i64 inputs, float* out, i64 out_stride,
          void* scratch) {
    Panel& panel = *static_cast<Panel*>(scratch);
    Lanes& lanes = *reinterpret_cast<Lanes*>(static_cast<char*>(scratch) + sizeof(Panel));
    std::memset(&lanes, 0, static_cast<std::size_t>(inputs) * sizeof lanes.lanes[0]);
    for (i64 column = 0; column < w.columns; column += DEPTH) {
        const i64 columns = least(DEPTH, w.columns - column), block = column / BLOCK, stride = in.values_stride;
        for (i64 j = 0; j < rows; j++)
            for (i64 b = 0; b * BLOCK < columns; b++)
                unpack_block<Format>(Format::open(w, first + j, block + b), least(8, (columns - b * BLOCK) / GROUP), b,
                                     j, panel);
        auto input = [&](i64 i) {
            const i64 row = in.row(from + i), at = row * in.blocks + block;
            return TileInput{in.values[Format::ORDER] + block * stride + row * BLOCK, in.scales + at,
                             in.sums + at * SUMS, lanes.lanes[i]};
        };
        const bool same = column + DEPTH < w.columns;
        for (i64 j = 0; j < rows; j++)  // the next columns of these rows, or the first ones of the next
            ask_for_row<Format>(w, first + j + (same ? 0 : rows), same ? block + DEPTH / BLOCK : 0);
        for (i64 i = 0; i < inputs; i += TILE_INPUTS) {
            TileInput tile[TILE_INPUTS];
            const i64 n = least(TILE_INPUTS, inputs - i);
            for (i64 k = 0; k < n; k++) tile[k] = input(i + k);
            switch (n) {
                case 1: tile_row<Format, 1>(panel, rows, columns, tile, stride); break;
                case 2: tile_row<Format, 2>(panel, rows, columns, tile, stride); break;
                case 3: tile_row<Format, 3>(panel, rows, columns, tile, stride); break;
                default: tile_row<Format, TILE_INPUTS>(panel, rows, columns, tile, stride);
            }
        }
    }
    for (i64 i = 0; i < inputs; i++)
        for (i64 j = 0; j < rows; j++) out[(from + i) * out_stride + j] = add_lanes(load(lanes.lanes[i][j]));
}

}  // namespace
