// What sampling asks of all logits of a row.
#pragma once

#include "../step_kernels.h"

namespace {

// The highest of x [n], n > 0, and the lowest index that has it; −1 if any is NaN.
i64 logits_top(const float* x, i64 n, float* top) {
    constexpr i64 PART = 1024;
    float best = -INFINITY;
    i64 part = 0;  // where the best was first seen
    bool bad = false;
    for (i64 first = 0; first < n; first += PART) {
        const i64 end = first + PART < n ? first + PART : n;
        vf highest = splat(-INFINITY);
        vi broken = {};
        i64 i = first;
        for (; i + LANES <= end; i += LANES) {
            vf v = load(x + i);
            broken |= v != v;
            highest = larger(v, highest);
        }
        float own = -INFINITY;
        for (i64 lane = 0; lane < LANES; lane++) {
            own = highest[lane] > own ? highest[lane] : own;
            bad |= broken[lane] != 0;
        }
        for (; i < end; i++) {
            own = x[i] > own ? x[i] : own;
            bad |= x[i] != x[i];
        }
        if (own > best) {
            best = own;
            part = first;
        }
    }
    *top = best;
    if (bad) return -1;
    while (part < n && x[part] != best) part++;
    return part;
}

double weigh_logits(const float* x, i64 n, float top, float factor, float* out) {
    vd sum = {};
    for (i64 i = 0; i < n; i += LANES) {
        vf e = exponential((load(x + i, n - i) - top) * factor);
        if (out) store(out + i, e, n - i);
        for (i64 lane = n - i; lane < LANES; lane++) e[lane] = 0;
        sum += __builtin_convertvector(e, vd);
    }
    double all = 0;
    for (i64 lane = 0; lane < LANES; lane++) all += sum[lane];
    return all;
}

}  // namespace
