// The low-precision round trips of DeepSeek's own inference code, simulated in float32.
//
// A group of channels shares one power-of-two scale, the smallest that brings its largest magnitude into the format's
// range.  The last group of a row may be shorter.  A group that holds a NaN or an infinity has scale 1: NaN stays NaN,
// and what is out of range becomes the largest number.
//
// Scaling by powers of two is exact and everything else is one rounding, so no compiler's choice can change a bit.
#pragma once

#include "simd.h"

constexpr i64 LINEAR_GROUP = 128;  // inputs of linears, FP8
constexpr i64 KEY_GROUP = 64;      // key/value rows, FP8
constexpr i64 INDEX_GROUP = 32;    // the indexer's queries and rows, FP4

// The scale of a group for numbers up to `largest`; magnitudes below `floor` count as that.
PS_INLINE float group_scale(const float* x, i64 n, float largest, float floor) {
    float top = floor;
    bool finite = true;
    for (i64 i = 0; i < n; i++) {
        const float size = std::fabs(x[i]);
        top = size > top ? size : top;
        finite = finite && size < INFINITY;
    }
    if (!finite) return 1.0f;
    // 2^ceil(log2 t), from the exponent and not from a logarithm.
    const std::uint32_t b = bits<std::uint32_t>(top / largest);
    return bits<float>((b & 0x7f800000u) + (b & 0x007fffffu ? 0x00800000u : 0u));
}

// To the nearest number of e4m3, ties to even; NaN stays NaN.
PS_INLINE float nearest_e4m3(float x) {
    const float largest = 448.0f, size = std::fabs(x) > largest ? largest : std::fabs(x);
    float rounded;
    if (size < 0x1p-6f) {
        rounded = (size + 0x1p14f) - 0x1p14f;  // steps of 2^-9: what is left of a float32 there
    } else {
        const std::uint32_t b = bits<std::uint32_t>(size);
        rounded = size != size ? size : bits<float>((b + 0x7ffffu + (b >> 20 & 1u)) & ~0xfffffu);
    }
    return std::copysign(rounded, x);
}

// To the nearest number of e2m1 (steps of ½ below 2, of 1 below 4, of 2 above), ties to even; NaN stays NaN.
PS_INLINE float nearest_e2m1(float x) {
    const float largest = 6.0f, size = std::fabs(x) > largest ? largest : std::fabs(x);
    const float shift = size < 2 ? 0x1.8p22f : size < 4 ? 0x1.8p23f : 0x1.8p24f;
    return std::copysign((size + shift) - shift, x);
}

// Row x [n] in place, in groups of `group` channels.
PS_INLINE void round_fp8(float* x, i64 n, i64 group) {
    for (i64 at = 0; at < n; at += group) {
        const i64 count = n - at < group ? n - at : group;
        const float scale = group_scale(x + at, count, 448.0f, 1e-4f);
        for (i64 i = at; i < at + count; i++) x[i] = nearest_e4m3(x[i] / scale) * scale;
    }
}

PS_INLINE void round_fp4(float* x, i64 n, i64 group) {
    for (i64 at = 0; at < n; at += group) {
        const i64 count = n - at < group ? n - at : group;
        const float scale = group_scale(x + at, count, 6.0f, 6.0f * 0x1p-126f);
        for (i64 i = at; i < at + count; i++) x[i] = nearest_e2m1(x[i] / scale) * scale;
    }
}

// Normalised Walsh–Hadamard transform of x [n] in place; n is a power of two.
PS_INLINE void hadamard(float* x, i64 n) {
    for (i64 width = 1; width < n; width *= 2)
        for (i64 at = 0; at < n; at += 2 * width)
            for (i64 i = at; i < at + width; i++) {
                const float a = x[i], b = x[i + width];
                x[i] = a + b;
                x[i + width] = a - b;
            }
    const float factor = static_cast<float>(1.0 / std::sqrt(static_cast<double>(n)));
    for (i64 i = 0; i < n; i++) x[i] *= factor;
}
