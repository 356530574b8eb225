// Dot products, the sum everything else is made of.
//
// The order of every sum is fixed: lane i adds up elements i, i + 8, i + 16, … with one accumulator, then the lanes
// are added as in sum_lanes.  How many dot products are computed side by side only decides how often a value is
// loaded, so tiles of any size give the same bits.
#pragma once

#include "simd.h"

// X rows x[i] against W rows of w: out[i · out_stride + j] = x_i · w_j over k elements.
template <int X, int W>
PS_INLINE void dot_tile(const float* const (&x)[X], const float* w, i64 w_stride, i64 k, float* out, i64 out_stride) {
    vf sum[X][W] = {};
    i64 d = 0;
    for (; d + LANES <= k; d += LANES) {
        vf a[X];
        PS_UNROLL
        for (int i = 0; i < X; i++) a[i] = load(x[i] + d);
        PS_UNROLL
        for (int j = 0; j < W; j++) {
            vf b = load(w + j * w_stride + d);
            PS_UNROLL
            for (int i = 0; i < X; i++) sum[i][j] = fma(a[i], b, sum[i][j]);
        }
    }
    if (d < k) {
        vf a[X];
        PS_UNROLL
        for (int i = 0; i < X; i++) a[i] = load(x[i] + d, k - d);
        PS_UNROLL
        for (int j = 0; j < W; j++) {
            vf b = load(w + j * w_stride + d, k - d);
            PS_UNROLL
            for (int i = 0; i < X; i++) sum[i][j] = fma(a[i], b, sum[i][j]);
        }
    }
    PS_UNROLL
    for (int i = 0; i < X; i++)
        PS_UNROLL
        for (int j = 0; j < W; j++) out[i * out_stride + j] = sum_lanes(sum[i][j]);
}

template <int X>
PS_INLINE void dot_strip(const float* const (&x)[X], const float* w, i64 w_stride, i64 n, i64 k, float* out,
                         i64 out_stride) {
    i64 j = 0;
    for (; j + 4 <= n; j += 4) dot_tile<X, 4>(x, w + j * w_stride, w_stride, k, out + j, out_stride);
    for (; j < n; j++) dot_tile<X, 1>(x, w + j * w_stride, w_stride, k, out + j, out_stride);
}

// All `rows` rows of x against all n rows of w.  3 × 4 sums and what they are made of fit sixteen registers.
PS_INLINE void dot_all(const float* x, i64 x_stride, i64 rows, const float* w, i64 w_stride, i64 n, i64 k, float* out,
                       i64 out_stride) {
    i64 i = 0;
    for (; i + 3 <= rows; i += 3) {
        const float* three[] = {x + i * x_stride, x + (i + 1) * x_stride, x + (i + 2) * x_stride};
        dot_strip<3>(three, w, w_stride, n, k, out + i * out_stride, out_stride);
    }
    if (rows - i == 2) {
        const float* two[] = {x + i * x_stride, x + (i + 1) * x_stride};
        dot_strip<2>(two, w, w_stride, n, k, out + i * out_stride, out_stride);
    } else if (rows - i == 1) {
        const float* one[] = {x + i * x_stride};
        dot_strip<1>(one, w, w_stride, n, k, out + i * out_stride, out_stride);
    }
}
