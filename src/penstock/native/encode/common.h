// What encoders share: float16 by bits, rounding in vectors, and a block's view of its row.
#pragma once

#include "../encode.h"
#include "../simd.h"

#if defined(__AVX__)
#include <immintrin.h>
#endif

namespace {

using u16 = std::uint16_t;
using u32 = std::uint32_t;

constexpr i64 SUPER = 256;  // weights of a K block

typedef u8 vb __attribute__((vector_size(8)));  // a byte for each lane

// N small integers as bytes, negative ones as int8.  By way of an array: a loop becomes packing instructions, a conversion
// of vectors does not.
template <int N>
PS_INLINE void put_bytes(u8* p, const vi (&codes)[N / LANES]) {
    std::int32_t numbers[N];
    std::memcpy(numbers, codes, sizeof numbers);
    for (int i = 0; i < N; i++) p[i] = static_cast<u8>(numbers[i]);
}
PS_INLINE vu load_u8(const u8* p) {
    vb v;
    std::memcpy(&v, p, sizeof v);
    return __builtin_convertvector(v, vu);
}

PS_INLINE void put_u16(u8* p, u16 value) { std::memcpy(p, &value, 2); }

// To the nearest float16, ties to even; beyond its range lies infinity.
PS_INLINE u16 to_f16(float x) {
    const u32 all = bits<u32>(x), sign = all >> 16 & 0x8000u;
    const float size = bits<float>(all & 0x7fffffffu);
    if (!(size < 65520.0f)) return static_cast<u16>(sign | (size == size ? 0x7c00u : 0x7e00u));
    if (size < 0x1p-14f)  // steps of 2^-24: what is left of a float32 beside one half
        return static_cast<u16>(sign | (bits<u32>(size + 0.5f) - bits<u32>(0.5f)));
    const u32 b = bits<u32>(size);
    return static_cast<u16>(sign | (((b + 0xfffu + (b >> 13 & 1u)) >> 13) - (112u << 10)));
}

PS_INLINE float from_f16(u16 h) {
    const u32 magnitude = (h & 0x7fffu) << 13, sign = (h & 0x8000u) << 16;
    u32 value = magnitude + (112u << 23);
    if (magnitude >= 0x0f800000u) value = magnitude + (224u << 23);
    if (magnitude < 0x00800000u)
        value = bits<u32>(bits<float>(magnitude + (113u << 23)) - bits<float>(113u << 23));
    return bits<float>(value | sign);
}

PS_INLINE float magnitude(float x) { return bits<float>(bits<u32>(x) & 0x7fffffffu); }

// What a float16 field will hold, as the decoder will read it.
PS_INLINE float as_f16(float x) { return from_f16(to_f16(x)); }

// The next float16 that is not smaller in magnitude: near the end of its range steps are large, and a scale that is too
// small cannot be made up for by the integers that it multiplies.
PS_INLINE float as_f16_up(float x) {
    const u16 h = to_f16(x);
    return magnitude(from_f16(h)) < magnitude(x) ? from_f16(static_cast<u16>(h + 1)) : from_f16(h);
}

// To the nearest integer, ties to even, for magnitudes below 2^22.
PS_INLINE vf nearest(vf x) {
    const vf shift = splat(0x1.8p23f);
    return (x + shift) - shift;
}
PS_INLINE float nearest(float x) { return (x + 0x1.8p23f) - 0x1.8p23f; }

// As `larger` and `smaller` have it.  Compilers do not find the instruction in those.
PS_INLINE vf clamp(vf x, float low, float high) {
#if defined(__AVX__)
    return _mm256_min_ps(_mm256_max_ps(x, splat(low)), splat(high));
#else
    return smaller(larger(x, splat(low)), splat(high));
#endif
}
PS_INLINE float clamp(float x, float low, float high) { return x < low ? low : x > high ? high : x; }

// 1 / x, or 0 where that is no finite number.
PS_INLINE vf inverse(vf x) {
    const vf y = 1.0f / x, size = bits<vf>(bits<vu>(y) & 0x7fffffffu);
    return size < splat(INFINITY) ? y : vf{};
}
PS_INLINE float inverse(float x) {
    const float y = 1.0f / x;
    return magnitude(y) < INFINITY ? y : 0.0f;
}

PS_INLINE int lowest_lane(vf v) {
    float lanes[LANES];
    store(lanes, v);
    int best = 0;
    float least = lanes[0];
    for (int i = 1; i < LANES; i++) {
        best = lanes[i] < least ? i : best;
        least = lanes[i] < least ? lanes[i] : least;
    }
    return best;
}

struct Ones {
    float one[SUPER];
    constexpr Ones() : one() {
        for (float& each : one) each = 1.0f;
    }
};
constexpr Ones ONES;

// Where a block's importance lies.
PS_INLINE const float* weights_of(const float* importance, i64 column) {
    return importance ? importance + column : ONES.one;
}

// [columns] in blocks of N weights that become BYTES bytes each.  A function for every type: all in one would have too
// few registers for any.
template <i64 N, i64 BYTES, void (*ENCODE)(const float* x, const float* w, u8* out)>
__attribute__((noinline)) void by_blocks(const float* x, const float* importance, i64 columns, u8* out) {
    for (i64 c = 0; c < columns; c += N, out += BYTES) ENCODE(x + c, weights_of(importance, c), out);
}

// Σ w (x − x̂)² of candidates is compared in lanes: one candidate in each, one weight after another.
struct Sums {
    vf q{}, qq{}, xq{};  // Σ w q, Σ w q², Σ w x q

    PS_INLINE void add(float x, float w, vf code) {
        const vf wq = w * code;
        q += wq;
        qq += wq * code;
        xq += x * wq;
    }
};

}  // namespace
