// Products with vectors, compiled once per instruction set.
//
// Few inputs: the weights are read as a stream, unpacked in registers and used at once.  Many inputs: a panel of
// weights is unpacked into the first-level cache and serves them all, a tile of inputs and weights at a time.  Either
// way a lane of a result sees the same operations in the same order, which products_scalar.cpp spells out.
#include <cfloat>
#include <cstring>
#include <utility>

#include "formats/floats.h"
#include "formats/groups.h"
#include "formats/iq2_xxs.h"
#include "formats/k_quants.h"
#include "isa/isa.h"
#include "kernels.h"

namespace {

constexpr i64 AHEAD = 1024;  // bytes between what is computed with and what is asked of memory
constexpr i64 PANEL = 16;    // weight rows unpacked together
constexpr i64 DEPTH = 512;   // columns unpacked together: 16 KiB of integers
constexpr i64 FLOAT_DEPTH = 256;
constexpr i64 FLOAT_INPUTS = 64;
constexpr i64 INPUTS = 256;  // inputs that a panel serves before it is unpacked again
constexpr i64 LANES = 8;
constexpr i64 FLOAT_SUMS = 4;  // of eight lanes each

static_assert(DEPTH % BLOCK == 0 && FLOAT_DEPTH % SPAN == 0);

PS_INLINE i64 least(i64 a, i64 b) { return a < b ? a : b; }

// body<0>() … body<N − 1>()
template <int N, class Body>
PS_INLINE void unrolled(Body body) {
    [&]<int... I>(std::integer_sequence<int, I...>) __attribute__((always_inline)) {
        (body.template operator()<I>(), ...);
    }(std::make_integer_sequence<int, N>{});
}
#define PS_EACH <int G>() __attribute__((always_inline))

// ── integer formats, few inputs ──────────────────────────────────────────────────────────────────────────

// The inputs of X results.
template <int X>
struct FewInputs {
    const i16* x[X];
    const float *scales[X], *sums[X];
};

PS_INLINE void ask_ahead(const u8* p, i64 bytes) {
    for (i64 at = 0; at < bytes; at += 64) prefetch(p + AHEAD + at);
}

// Formats with one scale per block: what block b adds to the lanes of X results.
template <class Format, int X>
PS_INLINE void add_block(const typename Format::Block& block, const FewInputs<X>& in, i64 b, F8* acc) {
    Sum sum[X], part[CHAINS][X];
    for (int c = 0; c < CHAINS; c++)
        for (int i = 0; i < X; i++) part[c][i] = no_sum();
    unrolled<8>([&] PS_EACH {
        const W32 w = Format::template weights<G>(block);
        Sum* to = part[G % CHAINS];
        for (int i = 0; i < X; i++) to[i] = add_dot(to[i], w, load(in.x[i] + b * BLOCK + G * GROUP));
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
            v[i] = fma(dot_floats(weights, load_pair(in.x[i] + b * BLOCK + G * GROUP)), scale, v[i]);
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
    for (int i = 0; i < X; i++) {
        const i64 block = inputs.row(i) * inputs.blocks;
        in.x[i] = inputs.values[Format::ORDER] + block * BLOCK;
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

// ── integer formats, many inputs ─────────────────────────────────────────────────────────────────────────

// Weights of a panel, unpacked: the integers, and what blocks (or groups) of them are multiplied by.
struct Panel {
    alignas(64) i16 weights[PANEL][DEPTH];
    float scales[PANEL][DEPTH / GROUP];
    float minimums[PANEL][DEPTH / BLOCK][16];
};

// Lanes of the results of a panel with INPUTS inputs, between one depth and the next.
struct Lanes {
    alignas(64) float lanes[INPUTS][PANEL][LANES];
};

template <class Format>
PS_INLINE void unpack_block(const typename Format::Block& block, i64 groups, i64 b, i64 j, Panel& panel) {
    unrolled<8>([&] PS_EACH {
        if (Format::WHOLE || G < groups) {
            store(&panel.weights[j][b * BLOCK + G * GROUP], Format::template weights<G>(block));
            if (!Format::WHOLE || G == 0) {
                float scale[LANES];
                store(scale, Format::template scale<G>(block));
                panel.scales[j][b * (BLOCK / GROUP) + G] = scale[0];
            }
        }
    });
    if constexpr (Format::MINIMUMS >= 8) store(panel.minimums[j][b], Format::minimum(block, 0));
    if constexpr (Format::MINIMUMS == 16) store(panel.minimums[j][b] + 8, Format::minimum(block, 1));
}

struct TileInput {
    const i16* x;
    const float *scales, *sums;
    float (*lanes)[LANES];  // [PANEL]
};

// X inputs with W weight rows from j on, over the `columns` of a panel.  A function of its own: inlined into its
// callers, the compiler runs out of registers.
template <class Format, int X, int W>
__attribute__((noinline)) void tile(const Panel& panel, i64 j, i64 columns, const TileInput* in) {
    for (i64 b = 0; b * BLOCK < columns; b++) {
        const i64 groups = least(8, (columns - b * BLOCK) / GROUP);
        F8 v[X][W];
        if constexpr (Format::WHOLE) {
            Sum sum[X][W];
            for (int i = 0; i < X; i++)
                for (int k = 0; k < W; k++) sum[i][k] = no_sum();
            const i16* w = &panel.weights[j][b * BLOCK];
#pragma GCC unroll 4
            for (i64 at = 0; at < BLOCK; at += STEP) {
                V x[X];
                for (int i = 0; i < X; i++) x[i] = load_step(in[i].x + b * BLOCK + at);
                for (int k = 0; k < W; k++) {
                    const V v = load_step(w + k * DEPTH + at);
                    for (int i = 0; i < X; i++) sum[i][k] = add_dot(sum[i][k], v, x[i]);
                }
            }
            for (int k = 0; k < W; k++) {
                const F8 scale = splat(panel.scales[j + k][b * (BLOCK / GROUP)]);
                for (int i = 0; i < X; i++) v[i][k] = mul(floats(sum[i][k]), scale);
            }
        } else {
            for (int i = 0; i < X; i++)
                for (int k = 0; k < W; k++) v[i][k] = splat(0);
            for (i64 g = 0; g < groups; g++) {
                const i64 at = b * BLOCK + g * GROUP;
                Pair x[X];
                for (int i = 0; i < X; i++) x[i] = load_pair(in[i].x + at);
                for (int k = 0; k < W; k++) {
                    const Pair w = load_pair(&panel.weights[j + k][at]);
                    const F8 scale = splat(panel.scales[j + k][b * (BLOCK / GROUP) + g]);
                    for (int i = 0; i < X; i++) v[i][k] = fma(dot_floats(w, x[i]), scale, v[i][k]);
                }
            }
        }
        for (int i = 0; i < X; i++) {
            const float* sums = in[i].sums + b * SUMS;
            const F8 scale = splat(in[i].scales[b]);
            for (int k = 0; k < W; k++) {
                const float* minimums = panel.minimums[j + k][b];
                F8 value = v[i][k];
                if constexpr (Format::MINIMUMS == 8) value = fnma(load(minimums), load(sums), value);
                if constexpr (Format::MINIMUMS == 16) {
                    value = fnma(load(minimums), load(sums + 8), value);
                    value = fnma(load(minimums + 8), load(sums + 16), value);
                }
                float* lanes = in[i].lanes[j + k];
                store(lanes, fma(value, scale, load(lanes)));
            }
        }
    }
}

template <class Format, int X>
PS_INLINE void tile_row(const Panel& panel, i64 rows, i64 columns, const TileInput* in) {
    i64 j = 0;
    for (; j + TILE_WEIGHTS <= rows; j += TILE_WEIGHTS) tile<Format, X, TILE_WEIGHTS>(panel, j, columns, in);
    for (; j < rows; j++) tile<Format, X, 1>(panel, j, columns, in);
}

template <class Format>
void many(const ps_weight& w, i64 first, i64 rows, const Inputs& in, i64 from, i64 inputs, float* out, i64 out_stride,
          void* scratch) {
    Panel& panel = *static_cast<Panel*>(scratch);
    Lanes& lanes = *reinterpret_cast<Lanes*>(static_cast<char*>(scratch) + sizeof(Panel));
    std::memset(&lanes, 0, static_cast<std::size_t>(inputs) * sizeof lanes.lanes[0]);
    for (i64 column = 0; column < w.columns; column += DEPTH) {
        const i64 columns = least(DEPTH, w.columns - column), block = column / BLOCK;
        for (i64 j = 0; j < rows; j++)
            for (i64 b = 0; b * BLOCK < columns; b++)
                unpack_block<Format>(Format::open(w, first + j, block + b), least(8, (columns - b * BLOCK) / GROUP), b,
                                     j, panel);
        auto input = [&](i64 i) {
            const i64 at = in.row(from + i) * in.blocks + block;
            return TileInput{in.values[Format::ORDER] + at * BLOCK, in.scales + at, in.sums + at * SUMS,
                             lanes.lanes[i]};
        };
        i64 i = 0;
        for (; i + TILE_INPUTS <= inputs; i += TILE_INPUTS) {
            TileInput tile[TILE_INPUTS];
            for (int k = 0; k < TILE_INPUTS; k++) tile[k] = input(i + k);
            for (i64 k = i + TILE_INPUTS; k < least(inputs, i + 2 * TILE_INPUTS); k++) {  // the next ones
                const TileInput next = input(k);
                for (i64 at = 0; at < columns; at += 32) prefetch(next.x + at);
                for (i64 j = 0; j < rows; j += 2) prefetch(next.lanes[j]);
            }
            tile_row<Format, TILE_INPUTS>(panel, rows, columns, tile);
        }
        for (; i + 2 <= inputs; i += 2) {
            const TileInput tile[2] = {input(i), input(i + 1)};
            tile_row<Format, 2>(panel, rows, columns, tile);
        }
        if (i < inputs) {
            const TileInput tile = input(i);
            tile_row<Format, 1>(panel, rows, columns, &tile);
        }
    }
    for (i64 i = 0; i < inputs; i++)
        for (i64 j = 0; j < rows; j++) out[(from + i) * out_stride + j] = add_lanes(load(lanes.lanes[i][j]));
}

// ── float formats ────────────────────────────────────────────────────────────────────────────────────────

PS_INLINE float add_sums(const F8* sums) { return add_lanes(add(add(sums[0], sums[1]), add(sums[2], sums[3]))); }

// Eights of columns are counted in FLOAT_SUMS sums in turn, so that none waits for the one before it.  One row at a
// time: the weights are one stream.
template <class Format, int X>
void few_floats(const ps_weight& w, i64 first, i64 last, const Inputs& in, float* out, i64 out_stride) {
    const float* x[X];
    for (int i = 0; i < X; i++) x[i] = in.x + in.row(i) * in.x_stride;
    for (i64 j = first; j < last; j++) {
        F8 acc[X][FLOAT_SUMS];
        for (int i = 0; i < X; i++)
            for (F8& sum : acc[i]) sum = splat(0);
        for (i64 column = 0; column < w.columns; column += SPAN) {
            const typename Format::Span span = Format::open(w, j, column);
            ask_ahead(span.p, SPAN * Format::BYTES);
            auto step = [&](i64 d, i64 left, int sum) __attribute__((always_inline)) {
                const F8 b = weights<Format>(span, d, left);
                for (int i = 0; i < X; i++) acc[i][sum] = fma(load(x[i] + column + d, left), b, acc[i][sum]);
            };
            const i64 columns = least(SPAN, w.columns - column);
            i64 d = 0;
            for (; d + FLOAT_SUMS * LANES <= columns; d += FLOAT_SUMS * LANES)
                unrolled<FLOAT_SUMS>([&] PS_EACH { step(d + G * LANES, LANES, G); });
            unrolled<FLOAT_SUMS>([&] PS_EACH {
                if (d + G * LANES < columns) step(d + G * LANES, columns - d - G * LANES, G);
            });
        }
        for (int i = 0; i < X; i++) out[i * out_stride + j - first] = add_sums(acc[i]);
    }
}

struct FloatPanel {
    alignas(64) float weights[PANEL][FLOAT_DEPTH];
};

struct FloatLanes {
    alignas(64) float lanes[FLOAT_INPUTS][PANEL][FLOAT_SUMS][LANES];
};

struct FloatInput {
    const float* x;
    float (*lanes)[FLOAT_SUMS][LANES];  // [PANEL]
};

// One of the sums at a time: those of a tile fill the registers.
template <int X, int W>
PS_INLINE void float_tile(const FloatPanel& panel, i64 j, i64 columns, const FloatInput* in) {
    for (i64 sum = 0; sum < FLOAT_SUMS; sum++) {
        F8 acc[X][W];
        for (int i = 0; i < X; i++)
            for (int k = 0; k < W; k++) acc[i][k] = load(in[i].lanes[j + k][sum]);
        auto step = [&](i64 d, i64 left) __attribute__((always_inline)) {
            F8 a[X];
            for (int i = 0; i < X; i++) a[i] = load(in[i].x + d, left);
            for (int k = 0; k < W; k++) {
                const F8 b = load(&panel.weights[j + k][d]);
                for (int i = 0; i < X; i++) acc[i][k] = fma(a[i], b, acc[i][k]);
            }
        };
        i64 d = sum * LANES;
        for (; d + LANES <= columns; d += FLOAT_SUMS * LANES) step(d, LANES);
        if (d < columns) step(d, columns - d);
        for (int i = 0; i < X; i++)
            for (int k = 0; k < W; k++) store(in[i].lanes[j + k][sum], acc[i][k]);
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

// ── by format ────────────────────────────────────────────────────────────────────────────────────────────

template <i64 MOST, class Few1, class Few2, class Few3, class Many>
PS_INLINE void divide(i64 first, i64 last, const Inputs& in, float* out, i64 out_stride, Few1 one, Few2 two,
                      Few3 three, Many many) {
    if (in.rows == 1) return one();
    if (in.rows == 2) return two();
    if (in.rows == 3) return three();
    for (i64 from = 0; from < in.rows; from += MOST)
        for (i64 j = first; j < last; j += PANEL)
            many(j, least(PANEL, last - j), from, least(MOST, in.rows - from), out + j - first, out_stride);
}

template <class Format>
void multiply_integers(const ps_weight& w, i64 first, i64 last, const Inputs& in, float* out, i64 stride,
                       void* scratch) {
    divide<INPUTS>(
        first, last, in, out, stride, [&] { few<Format, 1>(w, first, last, in, out, stride); },
        [&] { few<Format, 2>(w, first, last, in, out, stride); },
        [&] { few<Format, 3>(w, first, last, in, out, stride); },
        [&](i64 j, i64 rows, i64 from, i64 inputs, float* to, i64 step) {
            many<Format>(w, j, rows, in, from, inputs, to, step, scratch);
        });
}

template <class Format>
void multiply_floats(const ps_weight& w, i64 first, i64 last, const Inputs& in, float* out, i64 stride,
                     void* scratch) {
    divide<FLOAT_INPUTS>(
        first, last, in, out, stride, [&] { few_floats<Format, 1>(w, first, last, in, out, stride); },
        [&] { few_floats<Format, 2>(w, first, last, in, out, stride); },
        [&] { few_floats<Format, 3>(w, first, last, in, out, stride); },
        [&](i64 j, i64 rows, i64 from, i64 inputs, float* to, i64 step) {
            many_floats<Format>(w, j, rows, in, from, inputs, to, step, scratch);
        });
}

void multiply(const ps_weight& w, i64 first, i64 last, const Inputs& in, float* out, i64 stride, void* scratch) {
    switch (w.type) {
        case W_F32: return multiply_floats<F32>(w, first, last, in, out, stride, scratch);
        case W_F16: return multiply_floats<F16>(w, first, last, in, out, stride, scratch);
        case W_BF16: return multiply_floats<BF16>(w, first, last, in, out, stride, scratch);
        case W_FP8: return multiply_floats<FP8>(w, first, last, in, out, stride, scratch);
        case W_Q8_0: return multiply_integers<Q8_0>(w, first, last, in, out, stride, scratch);
        case W_Q2_K: return multiply_integers<Q2_K>(w, first, last, in, out, stride, scratch);
        case W_Q4_K: return multiply_integers<Q4_K>(w, first, last, in, out, stride, scratch);
        case W_IQ2_XXS: return multiply_integers<IQ2_XXS>(w, first, last, in, out, stride, scratch);
        case W_MXFP4: return multiply_integers<MXFP4>(w, first, last, in, out, stride, scratch);
        case W_FP4: return multiply_integers<FP4>(w, first, last, in, out, stride, scratch);
    }
}

// ── inputs ───────────────────────────────────────────────────────────────────────────────────────────────

// Plain loops: the compiler makes vectors of them.
void quantise_block(const float* x, i16* q, float& scale_out, float* sums) {
    std::uint32_t bits[BLOCK], largest_bits = 0;
    std::memcpy(bits, x, sizeof bits);
    for (int i = 0; i < BLOCK; i++) {
        const std::uint32_t size = bits[i] & 0x7fffffff;  // ordered like the floats; NaN and infinity are the largest
        largest_bits = size > largest_bits ? size : largest_bits;
    }
    if (largest_bits >= 0x7f800000) {
        scale_out = __builtin_nanf("");
        for (int i = 0; i < BLOCK; i++) q[i] = 0;
        for (int i = 0; i < SUMS; i++) sums[i] = 0;
        return;
    }
    float largest;
    std::memcpy(&largest, &largest_bits, 4);
    float scale = largest / 32767.0f;
    scale = scale > FLT_MIN ? scale : FLT_MIN;
    const float inverse = 1.0f / scale;
    scale_out = scale;
    std::int32_t rounded[BLOCK];
    const float shift = 12582912.0f;  // 1.5 · 2²³: leaves the nearest integer, ties to even, in the lowest bits
    for (int i = 0; i < BLOCK; i++) {
        const float shifted = x[i] * inverse + shift;
        std::memcpy(&rounded[i], &shifted, 4);
    }
    for (int i = 0; i < BLOCK; i++) q[i] = static_cast<i16>(rounded[i] & 0xffff);
    for (int k = 0; k < 16; k++) {
        std::int32_t sum = 0;
        for (int i = 0; i < 16; i++) sum += q[k * 16 + i];
        sums[8 + k] = static_cast<float>(sum);
    }
    for (int k = 0; k < 8; k++) sums[k] = sums[8 + 2 * k] + sums[8 + 2 * k + 1];
}

void quantise(const float* x, i64 columns, i16* const values[2], float* scales, float* sums) {
    for (i64 b = 0; b * BLOCK < columns; b++) {
        float padded[BLOCK];
        const float* from = x + b * BLOCK;
        if (columns - b * BLOCK < BLOCK) {
            for (i64 i = 0; i < BLOCK; i++) padded[i] = b * BLOCK + i < columns ? from[i] : 0;
            from = padded;
        }
        i16 q[BLOCK];
        quantise_block(from, q, scales[b], sums + b * SUMS);
        if (values[NATURAL]) std::memcpy(values[NATURAL] + b * BLOCK, q, sizeof q);
        if (i16* split = values[SPLIT])
            for (i64 g = 0; g < BLOCK; g += GROUP)
                for (i64 i = 0; i < 16; i++) {
                    split[b * BLOCK + g + i] = q[g + 2 * i];
                    split[b * BLOCK + g + 16 + i] = q[g + 2 * i + 1];
                }
    }
}

void add_scaled(float weight, const float* x, i64 n, float* out) {
    const F8 factor = splat(weight);
    i64 i = 0;
    for (; i + LANES <= n; i += LANES) store(out + i, fma(factor, load(x + i), load(out + i)));
    for (; i < n; i++) out[i] = __builtin_fmaf(weight, x[i], out[i]);
}

constexpr i64 INTEGER_SCRATCH = sizeof(Panel) + sizeof(Lanes), FLOAT_SCRATCH = sizeof(FloatPanel) + sizeof(FloatLanes);
constexpr i64 SCRATCH = INTEGER_SCRATCH > FLOAT_SCRATCH ? INTEGER_SCRATCH : FLOAT_SCRATCH;

}  // namespace

#if defined(PENSTOCK_ISA_AVX512)
const Kernels& avx512_kernels() {
#elif defined(PENSTOCK_ISA_AVX2)
const Kernels& avx2_kernels() {
#else
const Kernels& neon_kernels() {
#endif
    static constexpr Kernels kernels = {ISA_NAME, quantise, multiply, add_scaled, SCRATCH, PANEL};
    return kernels;
}
