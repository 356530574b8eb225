// Float formats.  Few inputs: weights are read as one stream.  Many: a panel of them is widened into the first-level cache
// and serves all inputs.
#pragma once

#include "../formats/floats.h"
#include "common.h"

namespace {

constexpr i64 FLOAT_PANEL = 16;   // weight rows widened together
constexpr i64 FLOAT_INPUTS = 128;  // inputs that a panel serves before it is widened again
constexpr i64 FLOAT_SUMS = 4;     // of eight lanes each

static_assert(FLOAT_DEPTH % SPAN == 0);

PS_INLINE float add_sums(const F8* sums) { return add_lanes(add(add(sums[0], sums[1]), add(sums[2], sums[3]))); }

// Eights of columns are counted in FLOAT_SUMS sums in turn, so that none waits for the one before it; where vectors have
// room for SIDES of them, they lie side by side.  One row at a time: the weights are one stream.
template <class Format, int X>
void few_floats(const ps_weight& w, i64 first, i64 last, const Inputs& in, float* out, i64 out_stride) {
    constexpr i64 TURN = FLOAT_SUMS * LANES;
    const float* x[X];
    for (int i = 0; i < X; i++) x[i] = in.x + in.row(i) * in.x_stride;
    const i64 even = w.columns / TURN * TURN;  // columns in whole turns
    for (i64 j = first; j < last; j++) {
        Sides wide[X][FLOAT_SUMS / SIDES];
        for (int i = 0; i < X; i++)
            for (Sides& sums : wide[i]) sums = splat_sides(0);
        for (i64 column = 0; column < even; column += SPAN) {
            const typename Format::Span span = Format::open(w, j, column);
            ask_ahead(span.p, SPAN * Format::BYTES);
            const i64 columns = least(SPAN, even - column);
            for (i64 d = 0; d < columns; d += TURN)
                unrolled<FLOAT_SUMS / SIDES>([&] PS_EACH {
                    const i64 at = d + G * SIDES * LANES;
                    const Sides b = side_weights<Format>(span, at);
                    for (int i = 0; i < X; i++) wide[i][G] = fma(load_sides(x[i] + column + at), b, wide[i][G]);
                });
        }
        for (int i = 0; i < X; i++) {
            float lanes[FLOAT_SUMS][LANES];
            for (int g = 0; g < FLOAT_SUMS / SIDES; g++) store_sides(lanes[g * SIDES], wide[i][g]);
            F8 sums[FLOAT_SUMS];
            for (int g = 0; g < FLOAT_SUMS; g++) sums[g] = load(lanes[g]);
            if (even < w.columns) {
                const i64 column = even / SPAN * SPAN;
                const typename Format::Span span = Format::open(w, j, column);
                for (i64 at = even, g = 0; at < w.columns; at += LANES, g++) {
                    const i64 left = w.columns - at;
                    sums[g] = fma(load(x[i] + at, left), weights<Format>(span, at - column, left), sums[g]);
                }
            }
            out[i * out_stride + j - first] = add_sums(sums);
        }
    }
}

struct FloatPanel {
    alignas(64) float weights[FLOAT_PANEL][FLOAT_DEPTH];
};

struct FloatLanes {
    alignas(64) float lanes[FLOAT_INPUTS][FLOAT_PANEL][FLOAT_SUMS][LANES];
};

struct FloatInput {
    const float* x;
    float (*lanes)[FLOAT_SUMS][LANES];  // [FLOAT_PANEL]
};

// SIDES of the sums at a time: those of a tile fill the registers.
template <int X, int W>
PS_INLINE void float_tile(const FloatPanel& panel, i64 j, i64 columns, const FloatInput* in) {
    for (i64 sum = 0; sum < FLOAT_SUMS; sum += SIDES) {
        Sides acc[X][W];
        for (int i = 0; i < X; i++)
            for (int k = 0; k < W; k++) acc[i][k] = load_sides(in[i].lanes[j + k][sum]);
        i64 d = sum * LANES;
        for (; d + SIDES * LANES <= columns; d += FLOAT_SUMS * LANES) {
            Sides a[X];
            for (int i = 0; i < X; i++) a[i] = load_sides(in[i].x + d);
            for (int k = 0; k < W; k++) {
                const Sides b = load_sides(&panel.weights[j + k][d]);
                for (int i = 0; i < X; i++) acc[i][k] = fma(a[i], b, acc[i][k]);
            }
        }
        for (int i = 0; i < X; i++)
            for (int k = 0; k < W; k++) store_sides(in[i].lanes[j + k][sum], acc[i][k]);
        for (i64 side = 0; d < columns; d += LANES, side++)  // what is left of the columns
            for (int i = 0; i < X; i++) {
                const F8 a = load(in[i].x + d, columns - d);
                for (int k = 0; k < W; k++) {
                    float* lanes = in[i].lanes[j + k][sum + side];
                    store(lanes, fma(a, load(&panel.weights[j + k][d]), load(lanes)));
                }
            }
    }
}

template <int X>
PS_INLINE void float_tile_row(const FloatPanel& panel, i64 rows, i64 columns, const FloatInput* in) {
    i64 j = 0;
    for (; j + FLOAT_TILE_WEIGHTS <= rows; j += FLOAT_TILE_WEIGHTS)
        float_tile<X, FLOAT_TILE_WEIGHTS>(panel, j, columns, in);
    for (; j < rows; j++) float_tile<X, 1>(panel, j, columns, in);
}

template <class Format>
void many_floats(const ps_weight& w, i64 first, i64 rows, const Inputs& in, i64 from, i64 inputs, float* out,
                 i64 out_stride, void* scratch) {
    FloatPanel& panel = *static_cast<FloatPanel*>(scratch);
    FloatLanes& lanes = *reinterpret_cast<FloatLanes*>(static_cast<char*>(scratch) + sizeof(FloatPanel));
    std::memset(&lanes, 0, static_cast<std::size_t>(inputs) * sizeof lanes.lanes[0]);
    for (i64 column = 0; column < w.columns; column += FLOAT_DEPTH) {
        const i64 columns = least(FLOAT_DEPTH, w.columns - column);
        for (i64 j = 0; j < rows; j++)
            for (i64 s = 0; s < columns; s += SPAN) {
                const auto span = Format::open(w, first + j, column + s);
                for (i64 d = 0; d < least(SPAN, columns - s); d += LANES)
                    store(&panel.weights[j][s + d], weights<Format>(span, d, columns - s - d));
            }
        auto input = [&](i64 i) {
            return FloatInput{in.x + in.row(from + i) * in.x_stride + column, lanes.lanes[i]};
        };
        i64 i = 0;
        for (; i + FLOAT_TILE_INPUTS <= inputs; i += FLOAT_TILE_INPUTS) {
            FloatInput tile[FLOAT_TILE_INPUTS];
            for (int k = 0; k < FLOAT_TILE_INPUTS; k++) tile[k] = input(i + k);
            float_tile_row<FLOAT_TILE_INPUTS>(panel, rows, columns, tile);
        }
        for (; i < inputs; i++) {
            const FloatInput tile = input(i);
            float_tile_row<1>(panel, rows, columns, &tile);
        }
    }
    for (i64 i = 0; i < inputs; i++)
        for (i64 j = 0; j < rows; j++) {
            F8 sums[FLOAT_SUMS];
            for (i64 k = 0; k < FLOAT_SUMS; k++) sums[k] = load(lanes.lanes[i][j][k]);
            out[(from + i) * out_stride + j] = add_sums(sums);
        }
}

}  // namespace
