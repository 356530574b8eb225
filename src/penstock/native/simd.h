// Vectors of eight floats, spelled with compiler extensions so that every architecture gets the same arithmetic in the
// same order, only in more or fewer instructions.
//
// Rows whose length is no multiple of eight are treated as if padded with zeros: the last vector takes the same path
// as all others, so no element's result depends on its place in the row.
#pragma once

#include <cmath>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#include "api.h"

constexpr i64 LANES = 8;

typedef float vf __attribute__((vector_size(32)));
typedef double vd __attribute__((vector_size(64)));
typedef std::int32_t vi __attribute__((vector_size(32)));
typedef std::uint32_t vu __attribute__((vector_size(32)));
typedef std::uint16_t vh __attribute__((vector_size(16)));

constexpr i64 padded(i64 n) { return (n + LANES - 1) / LANES * LANES; }

PS_INLINE vf splat(float x) { return vf{} + x; }

PS_INLINE vf load(const float* p) {
    vf v;
    std::memcpy(&v, p, sizeof v);
    return v;
}

PS_INLINE void store(float* p, vf v) { std::memcpy(p, &v, sizeof v); }

// The first n values, zeros behind them.  0 < n
PS_INLINE vf load(const float* p, i64 n) {
    if (n >= LANES) return load(p);
    float lanes[LANES] = {};
    for (i64 i = 0; i < n; i++) lanes[i] = p[i];
    return load(lanes);
}

PS_INLINE void store(float* p, vf v, i64 n) {
    if (n >= LANES) return store(p, v);
    float lanes[LANES];
    store(lanes, v);
    for (i64 i = 0; i < n; i++) p[i] = lanes[i];
}

template <class To, class From>
PS_INLINE To bits(From from) {
    static_assert(sizeof(To) == sizeof(From));
    To to;
    std::memcpy(&to, &from, sizeof to);
    return to;
}

// a · b + c, rounded once.  Compilers are told to fuse nothing by themselves: which sums they fuse is a matter of the
// loop around them, of their version and of the processor, and the same sum must come out the same everywhere.
PS_INLINE vf fma(vf a, vf b, vf c) {
#if defined(__FMA__)
    return _mm256_fmadd_ps(a, b, c);
#elif defined(__aarch64__)
    struct Halves {
        float32x4_t low, high;
    };
    const Halves x = bits<Halves>(a), y = bits<Halves>(b), z = bits<Halves>(c);
    return bits<vf>(Halves{vfmaq_f32(z.low, x.low, y.low), vfmaq_f32(z.high, x.high, y.high)});
#else
    vf sum;
    for (int lane = 0; lane < LANES; lane++) sum[lane] = __builtin_fmaf(a[lane], b[lane], c[lane]);
    return sum;
#endif
}
PS_INLINE vf fma(float a, vf b, vf c) { return fma(splat(a), b, c); }

// NaN in either argument gives b.
PS_INLINE vf larger(vf a, vf b) { return a > b ? a : b; }
PS_INLINE vf smaller(vf a, vf b) { return a < b ? a : b; }

// The one order in which eight lanes become one number: halves, quarters, pair.
PS_INLINE float sum_lanes(vf v) {
#if defined(__AVX__)
    const __m128 halves = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    const __m128 quarters = _mm_add_ps(halves, _mm_movehl_ps(halves, halves));
    return _mm_cvtss_f32(_mm_add_ss(quarters, _mm_movehdup_ps(quarters)));
#else
    float s[LANES];
    store(s, v);
    return ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
#endif
}

// e^x to about one unit in the last place.  Right at the ends: 0 for −inf, inf for inf and overflow, NaN for NaN.
PS_INLINE vf exponential(vf x) {
    const vf low = splat(-104.0f), high = splat(89.0f);  // beyond these the result is 0 or inf anyway
    vf t = x < low ? low : x;
    t = t > high ? high : t;
    // t = n · ln 2 + r with n an integer: adding 1.5 · 2^23 leaves n in the lowest bits of the sum.
    const vf shift = splat(12582912.0f);
    vf n = fma(1.44269504088896341f, t, shift);
    vi k = bits<vi>(n) - bits<vi>(shift);
    n -= shift;
    vf r = t - n * 0.693359375f;  // the high part of ln 2 is short, so this product is exact
    r = fma(2.12194440e-4f, n, r);
    // Cephes' minimax polynomial of e^r on ±½ ln 2.
    vf p = splat(1.9875691500e-4f);
    p = fma(p, r, splat(1.3981999507e-3f));
    p = fma(p, r, splat(8.3334519073e-3f));
    p = fma(p, r, splat(4.1665795894e-2f));
    p = fma(p, r, splat(1.6666665459e-1f));
    p = fma(p, r, splat(5.0000001201e-1f));
    p = fma(p, r * r, r);
    p = p + 1.0f;
    // 2^k in two factors, because k reaches past both ends of the exponent range.
    vi half = k >> 1;
    vf a = bits<vf>((half + 127) << 23);
    vf b = bits<vf>((k - half + 127) << 23);
    return p * a * b;
}

PS_INLINE float exponential(float x) { return exponential(splat(x))[0]; }

PS_INLINE vf sigmoid(vf x) { return 1.0f / (1.0f + exponential(-x)); }
