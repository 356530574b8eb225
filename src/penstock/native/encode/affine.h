// Types whose groups have a scale and a minimum, x ≈ scale · code − minimum: Q2_K, Q4_K, Q5_K and Q5_1.
//
// A group is fitted for itself first: from several ranges of codes at once, one in each lane, rounding and least squares
// take turns.  Then the small integers that stand for scales and minimums, and the two floats that they multiply, are
// improved in turns, always by the error that the decoder will make.
#pragma once

#include "common.h"

namespace {

// What least squares needs to know of a group whatever its codes are.
struct Moments {
    float w = 0, x = 0, xx = 0;  // Σ w, Σ w x, Σ w x²
};

template <int N>
PS_INLINE Moments moments(const float* x, const float* w) {
    vf sw{}, sx{}, sxx{};
    for (int i = 0; i < N; i += LANES) {
        const vf weight = load(w + i), value = load(x + i), wx = weight * value;
        sw += weight;
        sx += wx;
        sxx += wx * value;
    }
    return {sum_lanes(sw), sum_lanes(sx), sum_lanes(sxx)};
}

// Σ w (x − scale · q + minimum)²
PS_INLINE vf affine_error(const Moments& m, const Sums& s, vf scale, vf minimum) {
    return m.xx + scale * (scale * s.qq - 2.0f * s.xq) +
           minimum * (2.0f * m.x - 2.0f * scale * s.q + minimum * m.w);
}

// Sums of the codes that scale and minimum give.
template <int N>
PS_INLINE Sums affine_sums(const float* x, const float* w, vf factor, vf minimum, float most) {
    Sums sums;
    const vf shift = minimum * factor;
    for (int i = 0; i < N; i++) sums.add(x[i], w[i], clamp(nearest(x[i] * factor + shift), 0, most));
    return sums;
}

struct Affine {
    float scale, minimum;
};

enum class Minimum { POSITIVE, ANY };

// The best of eight ranges of codes after ROUNDS of least squares.
template <int N, int ROUNDS, Minimum ALLOWED = Minimum::POSITIVE>
PS_INLINE Affine fit_affine(const float* x, const float* w, const Moments& m, float most) {
    float low = ALLOWED == Minimum::POSITIVE ? 0 : x[0], high = low;
    for (int i = 0; i < N; i++) {
        low = x[i] < low ? x[i] : low;
        high = x[i] > high ? x[i] : high;
    }
    if (!(high - low > 0)) return {0, 0};
    // From a little less than all codes to one and a half more: room that is left, or ends that are cut off.
    const vf wide = most + vf{-0.6f, -0.31f, -0.03f, 0.26f, 0.54f, 0.83f, 1.11f, 1.4f};
    vf factor = wide / (high - low), minimum = splat(-low), scale{}, error{};
    for (int round = 0; round < ROUNDS; round++) {
        const Sums s = affine_sums<N>(x, w, factor, minimum, most);
        const vf determinant = m.w * s.qq - s.q * s.q;
        vf slope = (m.w * s.xq - m.x * s.q) * inverse(determinant);
        minimum = (slope * s.q - m.x) / m.w;
        if (ALLOWED == Minimum::POSITIVE) {
            const auto negative = minimum < vf{};
            slope = negative ? s.xq * inverse(s.qq) : slope;
            minimum = negative ? vf{} : minimum;
        }
        scale = larger(slope, vf{});
        error = affine_error(m, s, scale, minimum);
        factor = inverse(scale);
    }
    const int lane = lowest_lane(error);
    return {scale[lane], minimum[lane]};
}

// A block of GROUPS groups of N, codes up to MOST, small integers up to STEPS.
template <int N, int MOST, int STEPS>
struct AffineBlock {
    static constexpr int GROUPS = SUPER / N;
    float d = 0, dmin = 0;  // as float16 holds them
    float scale[GROUPS] = {}, minimum[GROUPS] = {};  // small integers
    float codes[SUPER] = {};

    PS_INLINE void fit(const float* x, const float* w) {
        Moments m[GROUPS];
        Affine own[GROUPS];
        float most_scale = 0, most_minimum = 0;
        for (int g = 0; g < GROUPS; g++) {
            m[g] = moments<N>(x + g * N, w + g * N);
            own[g] = fit_affine<N, 3>(x + g * N, w + g * N, m[g], MOST);
            most_scale = own[g].scale > most_scale ? own[g].scale : most_scale;
            most_minimum = own[g].minimum > most_minimum ? own[g].minimum : most_minimum;
        }
        float least = INFINITY;
        float tried_d = as_f16_up(most_scale / STEPS), tried_dmin = as_f16_up(most_minimum / STEPS);
        for (int round = 0; round < 3; round++) {
            AffineBlock tried;
            tried.d = as_f16(tried_d);
            tried.dmin = as_f16(tried_dmin);
            // a = scale · code, b = minimum: x ≈ d · a − dmin · b
            float aa = 0, ab = 0, bb = 0, xa = 0, xb = 0, error = 0;
            for (int g = 0; g < GROUPS; g++) {
                const Step step = best_integers(x + g * N, w + g * N, m[g], own[g], tried.d, tried.dmin);
                tried.scale[g] = step.scale;
                tried.minimum[g] = step.minimum;
                error += step.error;
                aa += step.scale * step.scale * step.qq;
                ab += step.scale * step.minimum * step.q;
                bb += step.minimum * step.minimum * m[g].w;
                xa += step.scale * step.xq;
                xb += step.minimum * m[g].x;
            }
            if (error < least) {
                least = error;
                *this = tried;
            } else if (round > 1) {
                break;
            }
            const float determinant = aa * bb - ab * ab;
            tried_d = (xa * bb - xb * ab) * inverse(determinant);
            tried_dmin = (xa * ab - xb * aa) * inverse(determinant);
            if (!(determinant > 0) || !(tried_dmin > 0)) {
                tried_d = xa * inverse(aa);
                tried_dmin = 0;
            }
            if (!(tried_d > 0)) break;
        }
        for (int g = 0; g < GROUPS; g++) {
            const vf factor = splat(inverse(d * scale[g])), low = splat(dmin * minimum[g]);
            for (int i = g * N; i < (g + 1) * N; i += LANES)
                store(codes + i, clamp(nearest((load(x + i) + low) * factor), 0, MOST));
        }
    }

  private:
    struct Step {
        float scale, minimum, error, q, qq, xq;
    };

    // The integers next to what a group would like, by the error they make: eight scales, each with its best minimum.
    static PS_INLINE Step best_integers(const float* x, const float* w, const Moments& m, Affine own, float d,
                                        float dmin) {
        const float middle = clamp(nearest(own.scale * inverse(d)), 0, STEPS);
        vf scale;
        for (int lane = 0; lane < LANES; lane++) scale[lane] = middle + static_cast<float>(lane - 4);
        scale = clamp(scale, 0, STEPS);
        const vf slope = d * scale, factor = inverse(slope);
        const float per_minimum = inverse(dmin);
        vf minimum = splat(clamp(nearest(own.minimum * per_minimum), 0, STEPS));
        Sums s;
        for (int round = 0; round < 2; round++) {
            s = affine_sums<N>(x, w, factor, dmin * minimum, MOST);
            if (round == 1) break;
            minimum = clamp(nearest((slope * s.q - m.x) / m.w * per_minimum), 0, STEPS);
        }
        const vf error = affine_error(m, s, slope, dmin * minimum);
        const int lane = lowest_lane(error);
        return {scale[lane], minimum[lane], error[lane], s.q[lane], s.qq[lane], s.xq[lane]};
    }
};

PS_INLINE u8 byte(float code) { return static_cast<u8>(static_cast<int>(code)); }

PS_INLINE void encode_q2_k(const float* x, const float* w, u8* out) {
    AffineBlock<16, 3, 15> block;
    block.fit(x, w);
    for (int g = 0; g < 16; g++) out[g] = static_cast<u8>(byte(block.scale[g]) | byte(block.minimum[g]) << 4);
    for (int i = 0; i < 64; i++) {
        const float* c = block.codes + i / 32 * 128 + i % 32;
        out[16 + i] = static_cast<u8>(byte(c[0]) | byte(c[32]) << 2 | byte(c[64]) << 4 | byte(c[96]) << 6);
    }
    put_u16(out + 80, to_f16(block.d));
    put_u16(out + 82, to_f16(block.dmin));
}

// Six bits each: groups 0–3 have theirs in one byte; groups 4–7 four here and two atop the bytes of 0–3.
template <class Block>
PS_INLINE void put_six_bits(const Block& block, u8* out) {
    for (int g = 0; g < 4; g++) {
        const u8 s = byte(block.scale[g]), m = byte(block.minimum[g]);
        const u8 s4 = byte(block.scale[g + 4]), m4 = byte(block.minimum[g + 4]);
        out[g] = static_cast<u8>(s | s4 >> 4 << 6);
        out[g + 4] = static_cast<u8>(m | m4 >> 4 << 6);
        out[g + 8] = static_cast<u8>((s4 & 15) | (m4 & 15) << 4);
    }
}

PS_INLINE void encode_q4_k(const float* x, const float* w, u8* out) {
    AffineBlock<32, 15, 63> block;
    block.fit(x, w);
    put_u16(out, to_f16(block.d));
    put_u16(out + 2, to_f16(block.dmin));
    put_six_bits(block, out + 4);
    for (int i = 0; i < 128; i++) {
        const float* c = block.codes + i / 32 * 64 + i % 32;
        out[16 + i] = static_cast<u8>(byte(c[0]) | byte(c[32]) << 4);
    }
}

PS_INLINE void encode_q5_k(const float* x, const float* w, u8* out) {
    AffineBlock<32, 31, 63> block;
    block.fit(x, w);
    put_u16(out, to_f16(block.d));
    put_u16(out + 2, to_f16(block.dmin));
    put_six_bits(block, out + 4);
    for (int i = 0; i < 32; i++) {
        int high = 0;
        for (int g = 0; g < 8; g++) high |= byte(block.codes[g * 32 + i]) >> 4 << g;
        out[16 + i] = static_cast<u8>(high);
    }
    for (int i = 0; i < 128; i++) {
        const float* c = block.codes + i / 32 * 64 + i % 32;
        out[48 + i] = static_cast<u8>((byte(c[0]) & 15) | (byte(c[32]) & 15) << 4);
    }
}

// One group that has its scale and minimum to itself, as floats.
PS_INLINE void encode_q5_1(const float* x, const float* w, u8* out) {
    const Affine own = fit_affine<32, 4, Minimum::ANY>(x, w, moments<32>(x, w), 31);
    const float d = as_f16(own.scale), m = as_f16(own.scale > 0 ? -own.minimum : x[0]);
    float codes[32];
    const vf factor = splat(inverse(d));
    for (int i = 0; i < 32; i += LANES) store(codes + i, clamp(nearest((load(x + i) - m) * factor), 0, 31));
    put_u16(out, to_f16(d));
    put_u16(out + 2, to_f16(m));
    u32 high = 0;
    for (int i = 0; i < 32; i++) high |= static_cast<u32>(byte(codes[i]) >> 4) << i;
    std::memcpy(out + 4, &high, 4);
    for (int i = 0; i < 16; i++) out[8 + i] = static_cast<u8>((byte(codes[i]) & 15) | (byte(codes[i + 16]) & 15) << 4);
}

}  // namespace
