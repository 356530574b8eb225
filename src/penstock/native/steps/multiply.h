// Products with weights that were decoded to float32.
#pragma once

#include "../dot.h"
#include "../kernels.h"
#include "../step_kernels.h"

namespace {

// Inputs wherever their rows lie.
void multiply_floats(const Inputs& in, const float* w, i64 n, float* out, i64 out_stride) {
    const i64 k = in.columns;
    dot_each([&](i64 i) { return in.x + in.row(i) * in.x_stride; }, in.rows, w, k, n, k, out, out_stride);
}

}  // namespace
