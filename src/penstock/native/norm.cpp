// RMS norm, and the angles of rotary position embedding, row by row.
#include <cmath>

#include "kernels.h"
#include "share.h"
#include "step_kernels.h"

// out = x / sqrt(mean(x²) + eps), times weight [dim] if that is not null, for rows of dim > 0 elements.
PS_EXPORT void ps_rms_norm(const float* x, const float* weight, i64 rows, i64 dim, float eps, float* out,
                           i64 threads) {
    over_rows(rows, dim / 8, threads, [&](i64 a, i64 b) { kernels().steps.norm_rows(x, weight, a, b, dim, eps, out); });
}

// cos and sin [rows, half] of position · frequency, in double precision until the end.
PS_EXPORT void ps_angles(const i64* positions, const float* frequencies, i64 rows, i64 half, float* cos, float* sin,
                         i64 threads) {
    over_rows(rows, half * 40, threads, [&](i64 a, i64 b) {
        for (i64 r = a; r < b; r++)
            for (i64 i = 0; i < half; i++) {
                const double angle = static_cast<double>(positions[r]) * static_cast<double>(frequencies[i]);
                cos[r * half + i] = static_cast<float>(std::cos(angle));
                sin[r * half + i] = static_cast<float>(std::sin(angle));
            }
    });
}
