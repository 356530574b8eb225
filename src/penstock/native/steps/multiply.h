// Products with weights that were decoded to float32.
#pragma once

#include "../dot.h"
#include "../kernels.h"
#include "../step_kernels.h"

namespace {

// Inputs three at a time, as in dot_all, wherever their rows lie.
void multiply_floats(const Inputs& in, const float* w, i64 n, float* out, i64 out_stride) {
    const i64 k = in.columns;
    i64 i = 0;
    for (; i + 3 <= in.rows; i += 3) {
        const float* x[] = {in.x + in.row(i) * in.x_stride, in.x + in.row(i + 1) * in.x_stride,
                            in.x + in.row(i + 2) * in.x_stride};
        dot_strip<3>(x, w, k, n, k, out + i * out_stride, out_stride);
    }
    for (; i < in.rows; i++) {
        const float* x[] = {in.x + in.row(i) * in.x_stride};
        dot_strip<1>(x, w, k, n, k, out + i * out_stride, out_stride);
    }
}

}  // namespace
