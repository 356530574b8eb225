// RMS norm and rotation of one row: the steps that many kernels have inside.
#pragma once

#include "simd.h"

// 1 / sqrt(mean(x²) + eps).  Squares of floats are exact as doubles and are summed as doubles: the rounding of the sum
// never shows.
PS_INLINE float norm_scale(const float* x, i64 dim, float eps) {
    vd sum = {};
    for (i64 d = 0; d < dim; d += LANES) {
        vd v = __builtin_convertvector(load(x + d, dim - d), vd);
        sum += v * v;
    }
    double s = 0;
    for (i64 lane = 0; lane < LANES; lane++) s += sum[lane];
    return static_cast<float>(1.0 / std::sqrt(s / static_cast<double>(dim) + eps));
}

// out = x / sqrt(mean(x²) + eps), times weight [dim] if that is not null.  x and out may be the same.
PS_INLINE void norm_row(const float* x, const float* weight, i64 dim, float eps, float* out) {
    vf scale = splat(norm_scale(x, dim, eps));
    for (i64 d = 0; d < dim; d += LANES) {
        vf v = load(x + d, dim - d) * scale;
        if (weight) v *= load(weight + d, dim - d);
        store(out + d, v, dim - d);
    }
}

// Turns `half` adjacent pairs by the angles whose cos and sin are given; `turn` −1 turns them back.
PS_INLINE void rotate_pairs(float* x, const float* cos, const float* sin, i64 half, float turn) {
    for (i64 i = 0; i < half; i++) {
        float a = x[2 * i], b = x[2 * i + 1], s = sin[i] * turn;
        x[2 * i] = __builtin_fmaf(a, cos[i], -(b * s));
        x[2 * i + 1] = __builtin_fmaf(a, s, b * cos[i]);
    }
}
