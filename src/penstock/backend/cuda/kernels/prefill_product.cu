// Products of many rows with packed weights, on the tensor cores: dense matrices, groups of columns, routed experts.
//
// A layer of the published model has 13 GFLOP for every 512 rows beside its routed experts, and 77 GFLOP of those: at 700 TFLOP/s they
// are as long as reading 4 GB, so from a few hundred rows on arithmetic is the floor for dense products, and for experts (12 rows
// each of 512) it is reading and unpacking until about 4,096 rows.
//
// A block multiplies 256 rows of weights (or 128 of gate and the same 128 of up) with up to 128 inputs.  Weights are unpacked in
// registers; inputs are halfs with a scale for every row, and go through shared memory 64 columns at a time.
//
// An output is one sum over the columns in their order, whatever the number of rows: how a prompt is cut into chunks does not matter.
#include "prefill_product.cuh"
#if WARPGROUPS
#include "prefill_product_wgmma.cuh"
#else
#include "prefill_product_mma.cuh"
#endif

extern "C" __global__ void __launch_bounds__(THREADS, 1) prefill_product(const __grid_constant__ Product p) {
    extern __shared__ __align__(1024) char shared[];
    multiply(p, shared);
}
