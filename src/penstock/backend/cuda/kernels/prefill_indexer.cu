// The indexer's scores of many rows (spec §3.9): Σ over heads of gate · max(0, query · key).
//
// 16 kFLOP for a row and a key: 8,192 rows at 8k tokens have 0.14 TFLOP (0.2 ms at 700 TFLOP/s), at 64k 2.2 TFLOP.  Scores are written once.
//
// A block has four rows of a sequence, each a warpgroup's, or four warps': 64 heads are the rows of the tensor cores' operand and stay in
// registers; keys stream past, 64 at a time, for all four.
#include "wgmma.cuh"

constexpr int DIM = 128, HEADS = 64, KEYS = 64, ROWS = 4, THREADS = ROWS * 128, STAGES = 4;
constexpr int STAGE_BYTES = KEYS * DIM * 2, STAGE_BLOCK = KEYS * 128;

struct ScoreRows {
    const float* q;      // [rows, 64, 128], not yet rotated
    const float* gates;  // [rows, 64], not yet scaled
    const int *positions, *firsts;          // [rows]
    const char* const* states;              // [rows]
    RowsAt keys;                            // [visible, 128] f16
    const int* groups;                      // [grid]: the first row of every four; the others are of its sequence
    const float2* turns;                    // [rows, rope / 2]
    float* scores;                          // [rows, stride]
    int rows, rope, ratio, stride, enough;  // enough: with so few visible rows all are taken, and scores are not needed
};

PS_DEVICE u32 to_halves(float low, float high) {
    u32 d;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(high), "f"(low));
    return d;
}

// Of 2 · HALF numbers, a lane and the one 2 · HALF away each keep HALF, added to the other's.
template <int HALF>
PS_DEVICE void halve(float (&v)[16], int lane) {
    const bool upper = lane & 2 * HALF;
#pragma unroll
    for (int i = 0; i < HALF; i++) {
        const float send = upper ? v[i] : v[i + HALF], own = upper ? v[i + HALF] : v[i];
        v[i] = own + __shfl_xor_sync(ALL, send, 2 * HALF);
    }
}

// c [16 heads of the warp, 64 keys] = a · keys
PS_DEVICE void score(const char* keys, const u32 (&a)[DIM / 16][4], float (&c)[KEYS / 2]) {
#if WARPGROUPS
    const u64 b = operand(keys, 1024);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < DIM / 16; k++) Wgmma<KEYS>::registers(c, a[k], b + (k / 4 * STAGE_BLOCK >> 4) + k % 4 * 2, k > 0);
    wgmma_commit();
    wgmma_wait<0>();
    keep(c);
#else
    const u32 rows = shared_address(keys) + lane_of_rows(threadIdx.x % WARP);
#pragma unroll
    for (int i = 0; i < KEYS / 2; i++) c[i] = 0;
    mma_rows(c, a, rows, STAGE_BLOCK);
#endif
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) score_rows(const __grid_constant__ ScoreRows p) {
    extern __shared__ __align__(1024) char shared[];
    char* stages = shared;
    float* parts = reinterpret_cast<float*>(shared + STAGES * STAGE_BYTES);  // [2][rows 4][warps 4][64]
    const int group = threadIdx.x / 128, warp = threadIdx.x / WARP % 4, lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    let_next_start();
    wait_for_previous();
    const int first = p.groups[blockIdx.x];
    int row = first, last = first;
    for (int r = first + 1; r < min(first + ROWS, p.rows) && p.firsts[r] == p.firsts[first]; r++) last = r;
    row = min(first + group, last);
    const int visible = (p.positions[row] + 1) / p.ratio, all = (p.positions[last] + 1) / p.ratio;
    if (all <= p.enough) return;
    const int tiles = (all + KEYS - 1) / KEYS;
    const char* keys = p.states[first] + p.keys.at;
    auto fetch = [&](int tile) {
        if (tile < tiles) {
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const int chunk = threadIdx.x % 16, key = threadIdx.x / 16 + 32 * i;
                const u32 to = shared_address(stages + tile % STAGES * STAGE_BYTES + chunk / 8 * STAGE_BLOCK) + swizzled(key, chunk % 8);
                cp_async16(to, keys + static_cast<size_t>(min(tile * KEYS + key, all - 1)) * p.keys.apart + chunk * 16);
            }
        }
        cp_async_commit();
    };
    for (int i = 0; i < STAGES - 1; i++) fetch(i);
    u32 a[DIM / 16][4];  // heads 16 warp + g and + 8
    float gate[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int head = 16 * warp + g + 8 * h;
        gate[h] = p.gates[static_cast<size_t>(row) * HEADS + head] * 0.011048543456039806f;  // 128^-0.5 · 64^-0.5
        const float* q = p.q + (static_cast<size_t>(row) * HEADS + head) * DIM;
#pragma unroll
        for (int k = 0; k < DIM / 8; k++) {
            const int dim = 8 * k + 2 * t, pair = (dim - (DIM - p.rope)) / 2;
            float2 v = *reinterpret_cast<const float2*>(q + dim);
            if (dim >= DIM - p.rope) {
                const float2 turn = p.turns[static_cast<size_t>(row) * (p.rope / 2) + pair];
                v = {v.x * turn.x - v.y * turn.y, v.x * turn.y + v.y * turn.x};
            }
            a[k / 2][k % 2 * 2 + h] = to_halves(v.x, v.y);
        }
    }
    float c[KEYS / 2];
#pragma unroll
    for (int i = 0; i < KEYS / 2; i++) c[i] = 0;
    for (int tile = 0; tile < tiles; tile++) {
        cp_async_wait<STAGES - 2>();
        fence_for_tensor_cores();
        __syncthreads();  // this stage is here, and all are done with the one before
        fetch(tile + STAGES - 1);
        score(stages + tile % STAGES * STAGE_BYTES, a, c);
        // Sums over the heads of a warp: lanes of one column halve what they hold, and lane 4g + t ends up with columns 8g + 2t, + 1.
        float v[16];
#pragma unroll
        for (int j = 0; j < 8; j++)
#pragma unroll
            for (int e = 0; e < 2; e++)
                v[2 * j + e] = fmaf(gate[0], fmaxf(c[4 * j + e], 0.0f), gate[1] * fmaxf(c[4 * j + 2 + e], 0.0f));
        halve<8>(v, lane), halve<4>(v, lane), halve<2>(v, lane);
        float* part = parts + ((tile % 2 * ROWS + group) * 4 + warp) * KEYS;
        *reinterpret_cast<float2*>(part + 8 * g + 2 * t) = {v[0], v[1]};
        named_barrier(1 + group, 128);
        const int own = threadIdx.x % 128, key = tile * KEYS + own;
        if (own < KEYS && key < visible && first + group <= last) {
            const float* from = parts + (tile % 2 * ROWS + group) * 4 * KEYS + own;
            p.scores[static_cast<size_t>(row) * p.stride + key] = (from[0] + from[KEYS]) + (from[2 * KEYS] + from[3 * KEYS]);
        }
    }
}
