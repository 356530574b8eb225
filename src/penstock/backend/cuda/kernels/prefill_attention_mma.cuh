// The attention of prefill_attention.cu with the instructions that a warp has on every card.
//
// A warp has 16 heads and one half of the dims: of the queries, as the operand that multiplies keys (64 registers), and of what becomes of
// them (128).  It scores a stage's keys with its half; the two warps of the same heads exchange what they have, and both add it up and
// weigh it: in the registers where weights are then, they already are the operand that multiplies values.  So a warp reads its half of the
// keys twice and nothing else.
//
// Floor: for a product of 16 × 8 × 16, 8 cycles of a multiprocessor of RTX 30, 40 and 50, 2 of A100, it reads 256 bytes of shared memory,
// 2 cycles.  The next stage (32 KB) has 16,000 cycles to come from the L2 cache (A100: 4,000).
#pragma once

#include "prefill_attention.cuh"

constexpr int STAGES = 2, WARPS = 8, THREADS = WARPS * WARP, HALF = DIM / 2;
constexpr int EXCHANGE_BYTES = WARPS * KEYS / 2 * WARP * 4;

// All warps fetch: a warp four keys of a stage, places behind the last key repeat it.  Lane l has the address of key l % 4 of the stage that
// is to be fetched next: it is looked up while others are on their way.
struct KeyFetcher {
    const AttendRows& p;
    const u32 stages;
    RowKeys& keys;  // in shared memory: of the row whose keys are fetched now
    const int end, blocks;
    int work, first = 0, count = 0, at = 0;  // at: the stage that is filled next, so the one in use once that has been asked for
    const char* upcoming = nullptr;

    PS_DEVICE KeyFetcher(const AttendRows& p, char* stages, RowKeys& keys, int blocks)
        : p(p), stages(shared_address(stages)), keys(keys), end(p.rows * blocks), blocks(blocks), work(blockIdx.x) {
        if (work < end) begin();
    }
    PS_DEVICE void look_up(const RowKeys& row) {
        const int key = first + static_cast<int>(threadIdx.x) / WARP * 4 + static_cast<int>(threadIdx.x) % 4;
        upcoming = row.at(min(key, count - 1));
    }
    PS_DEVICE void begin() {
        const RowKeys found(p.keys, work / blocks, DIM);
        first = 0, count = found.near + found.far, look_up(found);
        if (threadIdx.x == 0) keys = found;  // those before have been read behind another barrier, these are behind the next
    }
    PS_DEVICE void fetch() {
        if (work < end) {
            const int lane = threadIdx.x % WARP;
            const u32 to = stages + at * STAGE_BYTES + lane / 8 * STAGE_BLOCK;
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const char* from = reinterpret_cast<const char*>(__shfl_sync(ALL, reinterpret_cast<u64>(upcoming), i)) + lane * 16;
                const u32 place = to + swizzled(threadIdx.x / WARP * 4 + i, lane % 8);
                cp_async16(place, from), cp_async16(place + 4 * STAGE_BLOCK, from + 512);
            }
            first += KEYS;
            if (first < count) look_up(keys);
            else if ((work += gridDim.x) < end) begin();
        }
        at ^= 1;
        cp_async_commit();
    }
};

// Norm, rotation, scale: register r of slice s has dims 16 s + 8 (r / 2) + 2t, + 1 of the half, of heads g and g + 8.
PS_DEVICE void load_queries(const AttendRows& p, int row, int head0, float* squares, u32 (&q)[HALF / 16][4]) {
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, g = lane / 4, first = warp / 4 * HALF + lane % 4 * 2;
#pragma unroll
    for (int s = 0; s < HALF / 16; s++)
#pragma unroll
        for (int r = 0; r < 4; r++) {
            const int head = head0 + warp % 4 * 16 + g + r % 2 * 8;
            q[s][r] = head < p.heads ? load4(p.q + (static_cast<size_t>(row) * p.heads + head) * DIM + first + 16 * s + r / 2 * 8) : 0;
        }
    float sum[2] = {0, 0};
#pragma unroll
    for (int s = 0; s < HALF / 16; s++)
#pragma unroll
        for (int r = 0; r < 4; r++) {
            const float a = low_half(q[s][r]), b = high_half(q[s][r]);
            sum[r % 2] = fmaf(a, a, fmaf(b, b, sum[r % 2]));
        }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        sum[h] += __shfl_xor_sync(ALL, sum[h], 1);
        sum[h] += __shfl_xor_sync(ALL, sum[h], 2);
        squares[warp * 16 + g + 8 * h] = sum[h];  // all four lanes
    }
    named_barrier(1 + warp % 4, 2 * WARP);
    const float up = p.q_scales[row] * p.q_up, square = up * up / DIM;
    float scale[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {  // 512^-0.5, and e^x as powers of two
        const float* both = squares + warp % 4 * 16 + g + 8 * h;
        scale[h] = up / sqrtf((both[0] + both[64]) * square + p.eps) * 0.044194173824159216f * 1.4426950408889634f;
    }
#pragma unroll
    for (int s = 0; s < HALF / 16; s++)
#pragma unroll
        for (int r = 0; r < 4; r++) {
            const int pair = (first + 16 * s + r / 2 * 8 - (DIM - p.rope)) / 2;
            const float2 turn = first + 16 * s + r / 2 * 8 < DIM - p.rope ? float2{1, 0} : p.turns[static_cast<size_t>(row) * (p.rope / 2) + pair];
            const float a = low_half(q[s][r]) * scale[r % 2], b = high_half(q[s][r]) * scale[r % 2];
            q[s][r] = to_halves(a * turn.x - b * turn.y, a * turn.y + b * turn.x);
        }
}

// What a warp knows of its sixteen heads: rows g and g + 8 of its operands.
struct Heads {
    float o[DIM / 4], top[2], sum[2];

    PS_DEVICE void clear() {
#pragma unroll
        for (int i = 0; i < DIM / 4; i++) o[i] = 0;
        top[0] = top[1] = -INFINITY, sum[0] = sum[1] = 0;
    }
    // left: keys from this stage on.  own, other: where this warp and the one of the other half leave scores
    PS_DEVICE void add(const u32 (&q)[HALF / 16][4], u32 stage, int left, char* own, const char* other, int number) {
        const int lane = threadIdx.x % WARP, t = lane % 4;
        const u32 rows = stage + lane_of_rows(lane), turned = stage + lane_of_turned(lane);
        float s[KEYS / 2];
#pragma unroll
        for (int i = 0; i < KEYS / 2; i++) s[i] = 0;
        mma_rows(s, q, rows, STAGE_BLOCK);
#pragma unroll
        for (int i = 0; i < KEYS / 2; i += 4) *reinterpret_cast<float4*>(own + (i / 4 * WARP + lane) * 16) = {s[i], s[i + 1], s[i + 2], s[i + 3]};
        named_barrier(number, 2 * WARP);
        float most[2] = {-INFINITY, -INFINITY};
#pragma unroll
        for (int i = 0; i < KEYS / 2; i += 4) {
            const float4 v = *reinterpret_cast<const float4*>(other + (i / 4 * WARP + lane) * 16);
            s[i] += v.x, s[i + 1] += v.y, s[i + 2] += v.z, s[i + 3] += v.w;
        }
#pragma unroll
        for (int i = 0; i < KEYS / 2; i++) {
            if (i / 4 * 8 + 2 * t + i % 2 >= left) s[i] = -INFINITY;
            most[i / 2 % 2] = fmaxf(most[i / 2 % 2], s[i]);
        }
#pragma unroll
        for (int h = 0; h < 2; h++) {
            most[h] = fmaxf(most[h], __shfl_xor_sync(ALL, most[h], 1));
            most[h] = fmaxf(top[h], fmaxf(most[h], __shfl_xor_sync(ALL, most[h], 2)));
            const float factor = exp2_of(top[h] - most[h]);
            top[h] = most[h], sum[h] *= factor;
#pragma unroll
            for (int i = 0; i < DIM / 4; i += 4) o[i + 2 * h] *= factor, o[i + 2 * h + 1] *= factor;
        }
        u32 weights[KEYS / 16][4];
#pragma unroll
        for (int i = 0; i < KEYS / 2; i += 2) {
            const int h = i / 2 % 2;
            const float a = exp2_of(s[i] - top[h]), b = exp2_of(s[i + 1] - top[h]);
            sum[h] += a + b;
            weights[i / 8][i / 2 % 4] = to_halves(a, b);
        }
#pragma unroll
        for (int k = 0; k < KEYS / 16; k++)
#pragma unroll
            for (int j = 0; j < HALF / 8; j += 2) {
                u32 b[4];
                load_turned(b, turned, j / 2 % 4, j / 8 * STAGE_BLOCK + k * 2048);
                mma_sixteen(o, j, weights[k], b);
            }
    }
};

// shared: stages, scores, squares 512, keys of the next row
PS_DEVICE void attend(const AttendRows& p, char* shared) {
    char *stages = shared, *scores = stages + STAGES * STAGE_BYTES;
    float* squares = reinterpret_cast<float*>(scores + EXCHANGE_BYTES);
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, half = warp / 4, blocks = (p.heads + HEADS - 1) / HEADS;
    char *own = scores + warp * (EXCHANGE_BYTES / WARPS), *other = scores + (warp ^ 4) * (EXCHANGE_BYTES / WARPS);
    let_next_start();
    wait_for_previous();
    KeyFetcher fetcher(p, stages, *reinterpret_cast<RowKeys*>(squares + 128), blocks);
    __syncthreads();
    fetcher.fetch();
    for (int work = blockIdx.x; work < p.rows * blocks; work += gridDim.x) {
        const int row = work / blocks;
        u32 q[HALF / 16][4];
        load_queries(p, row, work % blocks * HEADS, squares, q);
        Heads heads;
        heads.clear();
        for (int left = near_keys(p.keys, row) + far_keys(p.keys, row); left > 0; left -= KEYS) {
            cp_async_wait<0>();
            __syncthreads();  // this stage is here, and all are done with the one before
            fetcher.fetch();
            heads.add(q, shared_address(stages + fetcher.at * STAGE_BYTES + half * (HALF / 64) * STAGE_BLOCK), left, own, other, 1 + warp % 4);
        }
        const int head = work % blocks * HEADS + warp % 4 * 16 + lane / 4;
        float scale[2];
#pragma unroll
        for (int h = 0; h < 2; h++) {
            heads.sum[h] += __shfl_xor_sync(ALL, heads.sum[h], 1);
            heads.sum[h] += __shfl_xor_sync(ALL, heads.sum[h], 2);
            const float sink = head + 8 * h < p.heads ? p.sinks[head + 8 * h] * 1.4426950408889634f : 0.0f;
            scale[h] = UP / (heads.sum[h] + exp2_of(sink - heads.top[h]));
        }
        store_heads(p, row, head, half, heads.o, scale);
    }
}
