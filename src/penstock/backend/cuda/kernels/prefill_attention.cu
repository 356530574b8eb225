// Attention of many rows over window, compressed rows and sink (spec §3.10): as attention.cu, on the tensor cores.
//
// A row with 640 keys is 84 MFLOP: 0.7 TFLOP for 8,192 of them, 1 ms at 700 TFLOP/s; keys come from the L2 cache (640 KB a row, 5 GB).
//
// A block has one row and up to 64 of its heads at a time: all see the same keys, so heads are the rows of the tensor cores' operand, and
// nothing is computed in vain whatever the indexer picked.  Keys come 32 at a time; four warps have the first half of the dims of what
// comes of 16 heads each, four the other.
#include "prefill_attention.cuh"
#if WARPGROUPS
#include "prefill_attention_wgmma.cuh"
#else
#include "prefill_attention_mma.cuh"
#endif

extern "C" __global__ void __launch_bounds__(THREADS, 1) attend_rows(const __grid_constant__ AttendRows p) {
    extern __shared__ __align__(1024) char shared[];
    attend(p, shared);
}
