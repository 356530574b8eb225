// Types whose groups have a scale alone, x ≈ scale · code with codes on both sides of zero: Q3_K, Q6_K, Q4_0, Q5_0; and
// IQ4_NL, whose codes stand for unequal steps.
#pragma once

#include "affine.h"

namespace {

// Codes −HALF … HALF − 1, evenly spaced.
template <int HALF>
struct Even {
    static constexpr float LOW = -HALF, HIGH = HALF - 1;
    static PS_INLINE vf code(vf x) { return clamp(nearest(x), LOW, HIGH); }
    static PS_INLINE vf value(vf code) { return code; }
};

// Sixteen levels, denser around zero.
struct Uneven {
    static constexpr float LOW = -127, HIGH = 113;
    static constexpr float LEVELS[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
    static PS_INLINE vf code(vf x) {
        vi code = {};
        for (int i = 0; i < 15; i++) code -= x > splat((LEVELS[i] + LEVELS[i + 1]) / 2);  // true is −1
        return __builtin_convertvector(code, vf);
    }
    static PS_INLINE vf value(vf code) {
        vf value = splat(LEVELS[0]);
        for (int i = 1; i < 16; i++) value = code > splat(static_cast<float>(i) - 0.5f) ? splat(LEVELS[i]) : value;
        return value;
    }
};

template <class Codes, int N>
PS_INLINE Sums symmetric_sums(const float* x, const float* w, vf factor) {
    Sums sums;
    for (int i = 0; i < N; i++) sums.add(x[i], w[i], Codes::value(Codes::code(x[i] * factor)));
    return sums;
}

// The number furthest from zero.  Found from both ends: clang 19 gets a running choice by magnitude wrong at -O3.
template <int N>
PS_INLINE float furthest(const float* x) {
    float low = 0, high = 0;
    for (int i = 0; i < N; i++) {
        low = x[i] < low ? x[i] : low;
        high = x[i] > high ? x[i] : high;
    }
    return high > -low ? high : low;
}

// The best scale after ROUNDS of least squares, from eight scales that put the largest magnitude at or beyond the low
// end, and eight that put it at or beyond the high one.
template <class Codes, int N, int ROUNDS>
PS_INLINE float fit_symmetric(const float* x, const float* w) {
    const float extreme = furthest<N>(x);
    if (extreme == 0) return 0;
    float best = 0, most = 0;
    for (int side = 0; side < 2; side++) {
        const float end = side ? Codes::HIGH : Codes::LOW;
        vf factor;
        for (int lane = 0; lane < LANES; lane++)
            factor[lane] = end * (0.95f + 0.07f * static_cast<float>(lane)) / extreme;
        vf gain{}, scale{};  // gain: how much the scale takes off Σ w x²
        for (int round = 0; round < ROUNDS; round++) {
            const Sums s = symmetric_sums<Codes, N>(x, w, factor);
            scale = s.xq * inverse(s.qq);
            gain = s.xq * scale;
            factor = inverse(scale);
        }
        const int lane = lowest_lane(-gain);
        if (gain[lane] > most) {
            most = gain[lane];
            best = scale[lane];
        }
    }
    return best;
}

// A block of sixteen groups of 16, with small signed integers −STEPS … STEPS − 1 for scales.
template <int HALF, int STEPS>
struct SymmetricBlock {
    static constexpr int N = 16, GROUPS = SUPER / N;
    float d = 0;             // as float16 holds it
    float scale[GROUPS] = {};  // small integers
    float codes[SUPER] = {};

    PS_INLINE void fit(const float* x, const float* w) {
        float own[GROUPS];
        for (int g = 0; g < GROUPS; g++) own[g] = fit_symmetric<Even<HALF>, N, 2>(x + g * N, w + g * N);
        float most = 0, tried_d = as_f16_up(-furthest<GROUPS>(own) / STEPS);
        for (int round = 0; round < 3 && tried_d != 0; round++) {
            SymmetricBlock tried;
            tried.d = as_f16(tried_d);
            float gain = 0, aa = 0, xa = 0;  // a = scale · code: x ≈ d · a
            for (int g = 0; g < GROUPS; g++) {
                const float middle = nearest(own[g] * inverse(tried.d));
                vf steps;
                for (int lane = 0; lane < LANES; lane++) steps[lane] = middle + static_cast<float>(lane - 4);
                steps = clamp(steps, -STEPS, STEPS - 1);
                const vf slope = tried.d * steps;
                const Sums s = symmetric_sums<Even<HALF>, N>(x + g * N, w + g * N, inverse(slope));
                const vf gains = slope * (2.0f * s.xq - slope * s.qq);
                const int lane = lowest_lane(-gains);
                tried.scale[g] = steps[lane];
                gain += gains[lane];
                aa += steps[lane] * steps[lane] * s.qq[lane];
                xa += steps[lane] * s.xq[lane];
            }
            if (gain > most) {
                most = gain;
                *this = tried;
            } else if (round > 1) {
                break;
            }
            tried_d = xa * inverse(aa);
        }
        for (int g = 0; g < GROUPS; g++) {
            const vf factor = splat(inverse(d * scale[g]));
            for (int i = g * N; i < (g + 1) * N; i += LANES)
                store(codes + i, Even<HALF>::code(load(x + i) * factor) + static_cast<float>(HALF));
        }
    }
};

PS_INLINE void encode_q3_k(const float* x, const float* w, u8* out) {
    SymmetricBlock<4, 32> block;
    block.fit(x, w);
    for (int i = 0; i < 32; i++) {
        int high = 0;
        for (int bit = 0; bit < 8; bit++) high |= byte(block.codes[bit * 32 + i]) >> 2 << bit;
        out[i] = static_cast<u8>(high);
    }
    for (int i = 0; i < 64; i++) {
        const float* c = block.codes + i / 32 * 128 + i % 32;
        auto low = [](float code) { return byte(code) & 3; };
        out[32 + i] = static_cast<u8>(low(c[0]) | low(c[32]) << 2 | low(c[64]) << 4 | low(c[96]) << 6);
    }
    // Sixteen low nibbles, then sixteen high pairs of bits.
    u8 scales[16];
    for (int g = 0; g < 16; g++) scales[g] = byte(block.scale[g] + 32.0f);
    for (int i = 0; i < 8; i++) out[96 + i] = static_cast<u8>((scales[i] & 15) | (scales[i + 8] & 15) << 4);
    for (int i = 0; i < 4; i++) {
        auto high = [&](int g) { return scales[g] >> 4; };
        out[104 + i] = static_cast<u8>(high(i) | high(i + 4) << 2 | high(i + 8) << 4 | high(i + 12) << 6);
    }
    put_u16(out + 108, to_f16(block.d));
}

PS_INLINE void encode_q6_k(const float* x, const float* w, u8* out) {
    SymmetricBlock<32, 128> block;
    block.fit(x, w);
    for (int i = 0; i < 128; i++) {  // byte 64 h + 32 side + l holds codes of planes `side` and `side + 2`
        const float* c = block.codes + i / 64 * 128 + i % 64;
        out[i] = static_cast<u8>((byte(c[0]) & 15) | (byte(c[64]) & 15) << 4);
    }
    for (int i = 0; i < 64; i++) {
        const float* c = block.codes + i / 32 * 128 + i % 32;
        auto high = [](float code) { return byte(code) >> 4; };
        out[128 + i] = static_cast<u8>(high(c[0]) | high(c[32]) << 2 | high(c[64]) << 4 | high(c[96]) << 6);
    }
    for (int g = 0; g < 16; g++) out[192 + g] = byte(block.scale[g]);
    put_u16(out + 208, to_f16(block.d));
}

// One group of 32 with a float16 scale of its own; codes count from zero.
template <class Codes>
PS_INLINE void encode_group(const float* x, const float* w, u8* out, float codes[32], float offset) {
    const float d = as_f16(fit_symmetric<Codes, 32, 4>(x, w));
    const vf factor = splat(inverse(d));
    for (int i = 0; i < 32; i += LANES) store(codes + i, Codes::code(load(x + i) * factor) + offset);
    put_u16(out, to_f16(d));
}

PS_INLINE void put_nibbles(const float codes[32], u8* out) {
    for (int i = 0; i < 16; i++) out[i] = static_cast<u8>((byte(codes[i]) & 15) | (byte(codes[i + 16]) & 15) << 4);
}

PS_INLINE void encode_q4_0(const float* x, const float* w, u8* out) {
    float codes[32];
    encode_group<Even<8>>(x, w, out, codes, 8);
    put_nibbles(codes, out + 2);
}

PS_INLINE void encode_q5_0(const float* x, const float* w, u8* out) {
    float codes[32];
    encode_group<Even<16>>(x, w, out, codes, 16);
    u32 high = 0;
    for (int i = 0; i < 32; i++) high |= static_cast<u32>(byte(codes[i]) >> 4) << i;
    std::memcpy(out + 2, &high, 4);
    put_nibbles(codes, out + 6);
}

PS_INLINE void encode_iq4_nl(const float* x, const float* w, u8* out) {
    float codes[32];
    encode_group<Uneven>(x, w, out, codes, 0);
    put_nibbles(codes, out + 2);
}

}  // namespace
