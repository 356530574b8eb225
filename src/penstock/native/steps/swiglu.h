// The activation inside an expert.
#pragma once

#include "../step_kernels.h"

namespace {

void swiglu(const float* gate, const float* up, i64 n, float limit, float* out) {
    const vf high = splat(limit), low = splat(-limit), least = splat(-__FLT_MAX__);
    for (i64 i = 0; i < n; i += LANES) {
        vf g = load(gate + i, n - i), u = load(up + i, n - i);
        g = g > high ? high : g;
        g = g < least ? least : g;  // −inf would become inf / inf
        u = u > high ? high : u;
        u = u < low ? low : u;
        store(out + i, g / (1.0f + exponential(-g)) * u, n - i);
    }
}

}  // namespace
