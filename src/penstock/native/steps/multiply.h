// Products with weights that were decoded to float32.
#pragma once

#include "../dot.h"
#include "../kernels.h"
#include "../step_kernels.h"

namespace {

// Inputs wherever their rows lie.
void multiply_floats(const Inputs& in, const float* w, i64 n, float* out, i64 out_stride) {
    const i64 k = in.columns;
    auto row = [&](i64 i) __attribute__((always_inline)) { return in.x + in.row(i) * in.x_stride; };
    dot_each(row, in.rows, w, k, n, k, out, out_stride);
}

}  // namespace
