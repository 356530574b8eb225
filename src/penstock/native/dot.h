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

#if defined(__AVX512F__)
constexpr int TOGETHER = 4;  // rows of x, so that sums and what they are made of fit the registers
constexpr int ACROSS = 8;    // rows of w, two of them side by side in a vector of sixteen

// Sums of eight rows, two in each vector, added up in the order of sum_lanes.
PS_INLINE vf sum_sides(const __m512 (&sum)[ACROSS / 2]) {
    auto halves = [](__m512 a, __m512 b) __attribute__((always_inline)) {  // a quarter for each of four rows
        return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
    };
    const __m512 a = halves(sum[0], sum[1]), b = halves(sum[2], sum[3]);
    const __m512 pairs = _mm512_add_ps(_mm512_shuffle_ps(a, b, 0x44), _mm512_shuffle_ps(a, b, 0xee));
    const __m512 each = _mm512_add_ps(pairs, _mm512_movehdup_ps(pairs));
    const __m512i order = _mm512_castsi256_si512(_mm256_setr_epi32(0, 4, 8, 12, 2, 6, 10, 14));
    return bits<vf>(_mm512_castps512_ps256(_mm512_permutexvar_ps(order, each)));
}

// Whole vectors of k alone.
template <int X>
PS_INLINE void dot_sides(const float* const (&x)[X], const float* w, i64 w_stride, i64 k, float* out, i64 out_stride) {
    __m512 sum[X][ACROSS / 2];
    for (auto& row : sum)
        for (__m512& one : row) one = _mm512_setzero_ps();
    for (i64 d = 0; d < k; d += LANES) {
        __m512 a[X];
        PS_UNROLL
        for (int i = 0; i < X; i++) a[i] = _mm512_broadcast_f32x8(_mm256_loadu_ps(x[i] + d));
        PS_UNROLL
        for (int j = 0; j < ACROSS / 2; j++) {
            const float* two = w + 2 * j * w_stride + d;
            const __m512 b = _mm512_insertf32x8(_mm512_castps256_ps512(_mm256_loadu_ps(two)),
                                                _mm256_loadu_ps(two + w_stride), 1);
            PS_UNROLL
            for (int i = 0; i < X; i++) sum[i][j] = _mm512_fmadd_ps(a[i], b, sum[i][j]);
        }
    }
    PS_UNROLL
    for (int i = 0; i < X; i++) store(out + i * out_stride, sum_sides(sum[i]));
}
#else
constexpr int TOGETHER = 3;
#endif

template <int X>
PS_INLINE void dot_strip(const float* const (&x)[X], const float* w, i64 w_stride, i64 n, i64 k, float* out,
                         i64 out_stride) {
    i64 j = 0;
#if defined(__AVX512F__)
    if (k % LANES == 0)
        for (; j + ACROSS <= n; j += ACROSS) dot_sides<X>(x, w + j * w_stride, w_stride, k, out + j, out_stride);
#endif
    for (; j + 4 <= n; j += 4) dot_tile<X, 4>(x, w + j * w_stride, w_stride, k, out + j, out_stride);
    for (; j < n; j++) dot_tile<X, 1>(x, w + j * w_stride, w_stride, k, out + j, out_stride);
}

// X rows of x from the i-th on, of which x_at(i) says where they lie, against all n rows of w.
template <int X, class At>
PS_INLINE void dot_rows(const At& x_at, i64 i, const float* w, i64 w_stride, i64 n, i64 k, float* out, i64 out_stride) {
    const float* x[X];
    for (int r = 0; r < X; r++) x[r] = x_at(i + r);
    dot_strip<X>(x, w, w_stride, n, k, out + i * out_stride, out_stride);
}

// All `rows` of them, TOGETHER at a time.
template <class At>
PS_INLINE void dot_each(const At& x_at, i64 rows, const float* w, i64 w_stride, i64 n, i64 k, float* out, i64 out_stride) {
    i64 i = 0;
    for (; i + TOGETHER <= rows; i += TOGETHER) dot_rows<TOGETHER>(x_at, i, w, w_stride, n, k, out, out_stride);
    if (rows - i == 3) dot_rows<3>(x_at, i, w, w_stride, n, k, out, out_stride);
    if (rows - i == 2) dot_rows<2>(x_at, i, w, w_stride, n, k, out, out_stride);
    if (rows - i == 1) dot_rows<1>(x_at, i, w, w_stride, n, k, out, out_stride);
}

// All `rows` rows of x against all n rows of w.
PS_INLINE void dot_all(const float* x, i64 x_stride, i64 rows, const float* w, i64 w_stride, i64 n, i64 k, float* out,
                       i64 out_stride) {
    dot_each([=](i64 i) __attribute__((always_inline)) { return x + i * x_stride; }, rows, w, w_stride, n, k, out, out_stride);
}
