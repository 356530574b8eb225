// Products with a matrix of weights.
#include "dot.h"

// out[r, j] = x_r · w_j for `rows` rows of x and n rows of w, each of k elements.
// x rows lie x_stride apart, w is contiguous, out rows lie out_stride apart.
// Called with slabs of w small enough for the L2 cache: w is read again for every three rows of x.
PS_KERNEL void ps_linear(const float* x, i64 x_stride, i64 rows, const float* w, i64 n, i64 k, float* out,
                         i64 out_stride) {
    dot_all(x, x_stride, rows, w, k, n, k, out, out_stride);
}
