// Stored rows → cells, one matrix at a time, when a model is loaded.
#include "repack.cuh"

#define REPACK(format, name) \
    extern "C" __global__ void repack_##name(const __grid_constant__ Repack p) {                   \
        wait_for_previous();                                                                       \
        repack<format>(p, (static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x) / WARP); \
    }

REPACK(Q8_0, q8_0)
REPACK(F16, f16)
REPACK(IQ2_XXS, iq2_xxs)
REPACK(Q2_K, q2_k)
REPACK(Q4_K, q4_k)
REPACK(MXFP4, mxfp4)
REPACK(BF16, bf16)
REPACK(F32, f32)
REPACK(Q6_K, q6_k)
REPACK(FP8, fp8_128)

