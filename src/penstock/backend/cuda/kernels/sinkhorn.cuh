// The coefficients of a hyper-connection (spec §3.2).
#pragma once

#include "common.cuh"

constexpr int STREAMS = 4, MIX = 24, PARTIAL = 32;  // 24 products, the sum of squares, padding

// 1 / v to within one unit in the last place, infinity becomes 0.  Forty of them follow each other in `sinkhorn`, which brings errors
// back in.
PS_DEVICE float inverse_of(float v) {
    float r;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(v));
    return r;
}
PS_DEVICE float sigmoid(float v) { return inverse_of(1.0f + expf(-v)); }

// One warp, lane 4 i + j of the first sixteen has logit (i, j): the matrix made doubly stochastic, columns last (spec §3.2) → out [16]
PS_DEVICE void sinkhorn(float logit, int iterations, float eps, int lane, float* scratch, float* out) {
    float top = fmaxf(logit, __shfl_xor_sync(ALL, logit, 1));
    top = fmaxf(top, __shfl_xor_sync(ALL, top, 2));
    const float e = expf(logit - top);
    float sum = e + __shfl_xor_sync(ALL, e, 1);
    sum += __shfl_xor_sync(ALL, sum, 2);
    if (lane < 16) scratch[lane] = e / sum + eps;
    __syncwarp();
    if (lane) return;
    // One lane goes on: sixteen numbers in registers are nearer to each other than in sixteen lanes.
    float c[4][4];
#pragma unroll
    for (int i = 0; i < 16; i++) c[i / 4][i % 4] = scratch[i];
#pragma unroll 1
    for (int k = 0; k < iterations; k++) {
        if (k) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float inverse = inverse_of((c[i][0] + c[i][1]) + (c[i][2] + c[i][3]) + eps);
#pragma unroll
                for (int j = 0; j < 4; j++) c[i][j] *= inverse;
            }
        }
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const float inverse = inverse_of((c[0][j] + c[1][j]) + (c[2][j] + c[3][j]) + eps);
#pragma unroll
            for (int i = 0; i < 4; i++) c[i][j] *= inverse;
        }
    }
#pragma unroll
    for (int i = 0; i < 4; i++) reinterpret_cast<float4*>(out)[i] = {c[i][0], c[i][1], c[i][2], c[i][3]};
}
