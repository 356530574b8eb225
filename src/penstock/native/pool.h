// Pooling of one compressor window.
#pragma once

#include "simd.h"

// A token's part in a window: its values, its scores, and what is still to be added to the scores (or null).
struct Candidate {
    const float *values, *scores, *bias;
};

PS_INLINE vf score_of(const Candidate& c, i64 d, i64 n) {
    vf score = load(c.scores + d, n);
    return c.bias ? score + load(c.bias + d, n) : score;
}

// Per channel the mean of the candidates' values weighted by the softmax of their scores → out [dim]
PS_INLINE void pool_window(const Candidate* candidates, i64 count, i64 dim, float* out) {
    for (i64 d = 0; d < dim; d += LANES) {
        vf top = splat(-INFINITY);
        for (i64 c = 0; c < count; c++) top = larger(score_of(candidates[c], d, dim - d), top);
        vf sum = {}, mean = {};
        for (i64 c = 0; c < count; c++) {
            vf e = exponential(score_of(candidates[c], d, dim - d) - top);
            sum += e;
            mean = fma(e, load(candidates[c].values + d, dim - d), mean);
        }
        store(out + d, mean / sum, dim - d);
    }
}
