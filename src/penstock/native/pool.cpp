// Pooling of compressor windows.
#include "simd.h"

// Per channel the mean of `candidates` values weighted by the softmax of their scores.
// values, scores [n, candidates, dim]; out [n, dim].  A score of −inf takes its candidate out.
PS_KERNEL void ps_pool(const float* values, const float* scores, i64 n, i64 candidates, i64 dim, float* out) {
    i64 size = candidates * dim;
    for (i64 r = 0; r < n; r++, values += size, scores += size, out += dim) {
        for (i64 d = 0; d < dim; d += LANES) {
            vf top = splat(-INFINITY);
            for (i64 c = 0; c < candidates; c++) top = larger(load(scores + c * dim + d, dim - d), top);
            vf sum = {}, mean = {};
            for (i64 c = 0; c < candidates; c++) {
                vf e = exponential(load(scores + c * dim + d, dim - d) - top);
                sum += e;
                mean += e * load(values + c * dim + d, dim - d);
            }
            store(out + d, mean / sum, dim - d);
        }
    }
}
