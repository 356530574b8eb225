// Products in plain loops: every format decoded element by element as its definition reads.
//
// The vector versions give the same bits.  All count in eight lanes: integers are summed exactly within a group of 32
// (or a block of 256, where a format has one scale for it), lane by lane; what follows is float32 arithmetic in the
// order written here.
#include <bit>
#include <cmath>
#include <cstring>

#include "formats/iq2_xxs_grid.h"
#include "kernels.h"

namespace {

constexpr int LANES = 8;

float add_lanes(const float* s) { return ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7])); }

// Small formats

float from_f16(const u8* p) {
    const int bits = p[0] | p[1] << 8, exponent = bits >> 10 & 31, fraction = bits & 1023;
    float size = exponent == 31  ? (fraction ? NAN : INFINITY)
                 : exponent == 0 ? std::ldexp(static_cast<float>(fraction), -24)
                                 : std::ldexp(static_cast<float>(1024 + fraction), exponent - 25);
    return bits & 0x8000 ? -size : size;
}

float from_bf16(const u8* p) { return std::bit_cast<float>(static_cast<std::uint32_t>(p[0] | p[1] << 8) << 16); }

float from_e8m0(u8 e) { return e == 255 ? NAN : std::ldexp(1.0f, e - 127); }

float from_e4m3(u8 code) {
    const int exponent = code >> 3 & 15, fraction = code & 7;
    float size = (code & 127) == 127 ? NAN
                 : exponent == 0     ? std::ldexp(static_cast<float>(fraction), -9)
                                     : std::ldexp(static_cast<float>(8 + fraction), exponent - 10);
    return code & 128 ? -size : size;
}

constexpr int TWICE_E2M1[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

// Integer formats: up to 256 weights as integers, with what they are to be multiplied by.

struct Block {
    int q[BLOCK];
    float scale[BLOCK / GROUP];  // one per group, or (`whole`) the first for all
    float minimum[16];           // to be subtracted, times the sum of the inputs it stands for
    bool whole;
    int minimums;  // 0, 8 (groups of 32) or 16 (groups of 16)
};

void decode_q8_0(const u8* p, i64 groups, Block& out) {
    for (i64 g = 0; g < groups; g++, p += 34) {
        out.scale[g] = from_f16(p);
        for (int i = 0; i < 32; i++) out.q[g * 32 + i] = static_cast<std::int8_t>(p[2 + i]);
    }
}

void decode_mxfp4(const u8* p, i64 groups, Block& out) {
    for (i64 g = 0; g < groups; g++, p += 17) {
        out.scale[g] = std::ldexp(1.0f, p[0] - 128);  // half, because the values are doubled; no NaN here
        for (int i = 0; i < 32; i++) out.q[g * 32 + i] = TWICE_E2M1[i < 16 ? p[1 + i] & 15 : p[1 + i - 16] >> 4];
    }
}

void decode_fp4(const u8* p, const u8* scales, i64 groups, Block& out) {
    for (i64 g = 0; g < groups; g++, p += 16) {
        out.scale[g] = scales[g] == 255 ? NAN : std::ldexp(1.0f, scales[g] - 128);
        for (int i = 0; i < 32; i++) out.q[g * 32 + i] = TWICE_E2M1[i % 2 ? p[i / 2] >> 4 : p[i / 2] & 15];
    }
}

void decode_q2_k(const u8* p, Block& out) {
    const float d = from_f16(p + 80), dmin = from_f16(p + 82);
    out.scale[0] = d;
    for (int i = 0; i < 16; i++) out.minimum[i] = dmin * static_cast<float>(p[i] >> 4);
    for (int i = 0; i < 256; i++) {
        const int h = i / 128, j = i % 128 / 32, l = i % 32;
        out.q[i] = (p[i / 16] & 15) * (p[16 + 32 * h + l] >> 2 * j & 3);
    }
}

void decode_q4_k(const u8* p, Block& out) {
    const float d = from_f16(p), dmin = from_f16(p + 2);
    const u8 *s = p + 4, *q = p + 16;
    out.scale[0] = d;
    for (int k = 0; k < 8; k++) {
        const int scale = k < 4 ? s[k] & 63 : (s[k + 4] & 15) | s[k - 4] >> 6 << 4;
        const int minimum = k < 4 ? s[k + 4] & 63 : s[k + 4] >> 4 | s[k] >> 6 << 4;
        out.minimum[k] = dmin * static_cast<float>(minimum);
        for (int l = 0; l < 32; l++) {
            const int byte = q[32 * (k / 2) + l];
            out.q[32 * k + l] = scale * (k % 2 ? byte >> 4 : byte & 15);
        }
    }
}

void decode_iq2_xxs(const u8* p, Block& out) {
    out.scale[0] = from_f16(p) * 0.125f;
    for (int g = 0; g < 8; g++) {
        const u8* a = p + 2 + 8 * g;
        const std::uint32_t b = a[4] | a[5] << 8 | a[6] << 16 | static_cast<std::uint32_t>(a[7]) << 24;
        for (int k = 0; k < 4; k++) {
            const unsigned v = b >> 7 * k & 127, signs = v | (std::popcount(v) & 1) << 7;
            for (int j = 0; j < 8; j++) {
                const int size = iq2_xxs::GRID[static_cast<std::size_t>(a[k]) * 8 + j] * static_cast<int>(2 * (b >> 28) + 1);
                out.q[32 * g + 8 * k + j] = signs >> j & 1 ? -size : size;
            }
        }
    }
}

void decode(const ps_weight& w, i64 row, i64 block, i64 groups, Block& out) {
    const i64 bytes = row_bytes(w.type, w.columns);
    const u8* p = static_cast<const u8*>(w.data) + row * bytes + row_bytes(w.type, block * BLOCK);
    out.whole = w.type == W_Q2_K || w.type == W_Q4_K || w.type == W_IQ2_XXS;
    out.minimums = w.type == W_Q2_K ? 16 : w.type == W_Q4_K ? 8 : 0;
    switch (w.type) {
        case W_Q8_0: return decode_q8_0(p, groups, out);
        case W_MXFP4: return decode_mxfp4(p, groups, out);
        case W_FP4: {
            const u8* scales = static_cast<const u8*>(w.scale) + row * (w.columns / GROUP) + block * (BLOCK / GROUP);
            return decode_fp4(p, scales, groups, out);
        }
        case W_Q2_K: return decode_q2_k(p, out);
        case W_Q4_K: return decode_q4_k(p, out);
        default: return decode_iq2_xxs(p, out);
    }
}

// Where element e of a group lies, and in which lane it is counted.
int place(Order order, int e) { return order == SPLIT ? e % 2 * 16 + e / 2 : e; }
int lane(int place) { return place % 16 / 2; }

void add_block(const Block& w, i64 groups, Order order, const i16* x, float scale, const float* sums, float* acc) {
    float v[LANES] = {};
    std::int32_t sum[LANES] = {};
    for (i64 g = 0; g < groups; g++) {
        for (int e = 0; e < GROUP; e++) {
            const int at = place(order, e);
            sum[lane(at)] += w.q[g * GROUP + e] * x[g * GROUP + at];
        }
        if (w.whole) continue;
        for (int l = 0; l < LANES; l++) {
            v[l] = std::fma(static_cast<float>(sum[l]), w.scale[g], v[l]);
            sum[l] = 0;
        }
    }
    for (int l = 0; l < LANES; l++) {
        if (w.whole) v[l] = static_cast<float>(sum[l]) * w.scale[0];
        if (w.minimums == 8) v[l] = std::fma(-w.minimum[l], sums[l], v[l]);
        if (w.minimums == 16) v[l] = std::fma(-w.minimum[l], sums[8 + l], v[l]);
        if (w.minimums == 16) v[l] = std::fma(-w.minimum[8 + l], sums[16 + l], v[l]);
        acc[l] = std::fma(v[l], scale, acc[l]);
    }
}

// Float formats

float element(const ps_weight& w, i64 row, i64 column) {
    const i64 size = row_bytes(w.type, 1);
    const u8* p = static_cast<const u8*>(w.data) + (row * w.columns + column) * size;
    switch (w.type) {
        case W_F16: return from_f16(p);
        case W_BF16: return from_bf16(p);
        case W_FP8: {
            const i64 tiles = (w.columns + 127) / 128;
            return from_e4m3(*p) * from_e8m0(static_cast<const u8*>(w.scale)[row / 128 * tiles + column / 128]);
        }
        default: {
            float value;
            std::memcpy(&value, p, sizeof value);
            return value;
        }
    }
}

void multiply(const ps_weight& w, i64 first, i64 last, const Inputs& in, float* out, i64 out_stride, void*) {
    const Wants want = wants(w.type);
    for (i64 j = first; j < last; j++)
        for (i64 i = 0; i < in.rows; i++) {
            const i64 r = in.row(i);
            float acc[LANES] = {};
            if (want.quantised) {
                for (i64 b = 0; b < in.blocks; b++) {
                    const i64 left = (w.columns - b * BLOCK) / GROUP, groups = left < 8 ? left : 8;
                    Block block = {};
                    decode(w, j, b, groups, block);
                    const i64 at = r * in.blocks + b;
                    add_block(block, groups, want.order, in.values[want.order] + b * in.values_stride + r * BLOCK, in.scales[at],
                              in.sums + at * SUMS, acc);
                }
            } else {
                float sums[4][LANES] = {};  // eights of columns in turn
                for (i64 d = 0; d < (w.columns + LANES - 1) / LANES * LANES; d++) {
                    const float a = d < w.columns ? in.x[r * in.x_stride + d] : 0;
                    float& sum = sums[d / LANES % 4][d % LANES];
                    sum = std::fma(a, d < w.columns ? element(w, j, d) : 0, sum);
                }
                for (int l = 0; l < LANES; l++) acc[l] = (sums[0][l] + sums[1][l]) + (sums[2][l] + sums[3][l]);
            }
            out[i * out_stride + j - first] = add_lanes(acc);
        }
}

void quantise(const float* x, i64 columns, i16* const values[ORDERS], i64 values_stride, float* scales, float* sums) {
    for (i64 b = 0; b * BLOCK < columns; b++, x += BLOCK, scales++, sums += SUMS) {
        const i64 left = columns - b * BLOCK, n = left < BLOCK ? left : BLOCK;
        float largest = 0;
        bool finite = true;
        for (i64 i = 0; i < n; i++) {
            finite = finite && std::isfinite(x[i]);
            largest = std::fmax(largest, std::fabs(x[i]));
        }
        // Not below the smallest normal number, so that its inverse is finite.
        const float scale = std::fmax(largest / static_cast<float>(LARGEST), __FLT_MIN__), inverse = 1.0f / scale;
        *scales = finite ? scale : NAN;
        int totals[SUMS] = {};
        for (int i = 0; i < BLOCK; i++) {
            const int q = finite && i < n ? static_cast<int>(std::nearbyint(x[i] * inverse)) : 0;
            for (Order order : {NATURAL, SPLIT})
                if (values[order])
                    values[order][b * values_stride + i / 32 * 32 + place(order, i % 32)] = static_cast<i16>(q);
            totals[i / 32] += q;
            totals[8 + i / 16] += q;
        }
        for (int i = 0; i < SUMS; i++) sums[i] = static_cast<float>(totals[i]);
    }
}

void add_scaled(float weight, const float* x, i64 n, float* out) {
    for (i64 i = 0; i < n; i++) out[i] = std::fma(weight, x[i], out[i]);
}

}  // namespace

const Kernels& scalar_kernels() {
    static const Kernels kernels = {"scalar", baseline_steps, quantise, multiply, add_scaled, 0, 16, false, FEW};
    return kernels;
}
