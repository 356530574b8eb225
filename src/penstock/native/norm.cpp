// RMS norm.
#include "simd.h"

// out = x / sqrt(mean(x²) + eps), times weight [dim] if that is not null, for rows of dim > 0 elements.
// Squares of floats are exact as doubles and are summed as doubles: the rounding of the sum never shows.
PS_KERNEL void ps_rms_norm(const float* x, const float* weight, i64 rows, i64 dim, float eps, float* out) {
    for (i64 r = 0; r < rows; r++, x += dim, out += dim) {
        vd sum = {};
        for (i64 d = 0; d < dim; d += LANES) {
            vd v = __builtin_convertvector(load(x + d, dim - d), vd);
            sum += v * v;
        }
        double s = 0;
        for (i64 lane = 0; lane < LANES; lane++) s += sum[lane];
        vf scale = splat(static_cast<float>(1.0 / std::sqrt(s / static_cast<double>(dim) + eps)));
        for (i64 d = 0; d < dim; d += LANES) {
            vf v = load(x + d, dim - d) * scale;
            if (weight) v *= load(weight + d, dim - d);
            store(out + d, v, dim - d);
        }
    }
}
