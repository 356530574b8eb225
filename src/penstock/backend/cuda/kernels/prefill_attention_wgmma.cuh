// The attention of prefill_attention.cu with Hopper's instructions.
//
// Keys come into a ring of four stages; each of two warpgroups scores its stage of a pair, both exchange maxima and weights, and each adds
// both stages' values to its half of the dims.  The scores of the next pair follow the values of this one without a gap.
#pragma once

#include "prefill_attention.cuh"
#include "wgmma.cuh"

constexpr int STAGES = 4, FETCHERS = 128, THREADS = 256 + FETCHERS;
constexpr int Q_BLOCK = HEADS * 128, Q_BYTES = HEADS * DIM * 2, BLOCKS = DIM / 64;

PS_DEVICE bool barrier_is_done(u64* bar, u32 parity) {
    u32 done;
    asm volatile(
        "{\n .reg .pred p;\n mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\n selp.u32 %0, 1, 0, p;\n}\n"
        : "=r"(done) : "r"(shared_address(bar)), "r"(parity) : "memory");
    return done;
}
struct Stages {
    int at = 0;
    u32 parity = 0;
    PS_DEVICE void advance() {
        if (++at == STAGES) at = 0, parity ^= 1;
    }
};

// Keys of all rows of the block, stage by stage; places behind the last key repeat it.
PS_DEVICE void fetch_keys(const AttendRows& p, char* stages, u64* full, u64* empty, int blocks) {
    const int lane = threadIdx.x % WARP, own = threadIdx.x % FETCHERS, column = own % 64, half = own / 64;
    Stages next, done;
    int pending = 0;
    auto arrive = [&] {
        fence_for_tensor_cores();
        barrier_arrive(full + done.at);
        done.advance();
        pending--;
    };
    if (static_cast<int>(blockIdx.x) >= p.rows * blocks) return;
    // A lane has the address of one key of the next stage: it is looked up while the stage before is on its way.
    int work = blockIdx.x, first = 0;
    RowKeys keys(p.keys, work / blocks, DIM);
    const char* upcoming = keys.at(min(lane, keys.near + keys.far - 1));
    while (work < p.rows * blocks) {
        const u64 from = reinterpret_cast<u64>(upcoming);
        first += KEYS;
        if (first % (2 * KEYS) == 0 && first >= keys.near + keys.far) {
            first = 0, work += gridDim.x;
            if (work < p.rows * blocks) {
                keys = RowKeys(p.keys, work / blocks, DIM);
                if (own == 0) {  // the row's queries, on their way into the L2 cache
                    const int head = work % blocks * HEADS, heads = min(HEADS, p.heads - head);
                    const u16* q = p.q + (static_cast<size_t>(work / blocks) * p.heads + head) * DIM;
                    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(q), "r"(heads * DIM * 2) : "memory");
                }
            }
        }
        upcoming = keys.at(min(first + lane, keys.near + keys.far - 1));
        if (!barrier_is_done(empty + next.at, next.parity ^ 1)) {  // those who are to empty it may wait for what is under way
            cp_async_wait<0>();
            while (pending) arrive();
            barrier_wait(empty + next.at, next.parity ^ 1);
        }
        const u32 to = shared_address(stages + next.at * STAGE_BYTES) + column / 8 * STAGE_BLOCK;
#pragma unroll
        for (int i = 0; i < KEYS / 2; i++) {
            const int k = half + 2 * i;
            cp_async16(to + swizzled(k, column % 8), reinterpret_cast<const char*>(__shfl_sync(ALL, from, k)) + column * 16);
        }
        cp_async_commit();
        next.advance();
        if (++pending > 2) {
            cp_async_wait<2>();
            arrive();
        }
    }
    cp_async_wait<0>();
    while (pending) arrive();
}

// Norm, rotation, scale; a warp has heads 8 warp …, lane l their dims 16 l ….
PS_DEVICE void make_queries(const AttendRows& p, int row, int head0, char* queries) {
    constexpr int AHEAD = 8;  // heads that are loaded at once
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    uint4 loaded[AHEAD][2];
#pragma unroll
    for (int k = 0; k < AHEAD; k++) {
        const int head = head0 + warp * AHEAD + k;
        const uint4* q = reinterpret_cast<const uint4*>(p.q + (static_cast<size_t>(row) * p.heads + head) * DIM + lane * 16);
#pragma unroll
        for (int i = 0; i < 2; i++) loaded[k][i] = head < p.heads ? q[i] : uint4{0, 0, 0, 0};
    }
    float2 turns[8];
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const int pair = lane * 8 + i - (DIM - p.rope) / 2;
        turns[i] = pair >= 0 ? p.turns[static_cast<size_t>(row) * (p.rope / 2) + pair] : float2{1, 0};
    }
    const float up = p.q_scales[row] * p.q_up, square = up * up / DIM;
#pragma unroll
    for (int k = 0; k < AHEAD; k++) {
        const int h = warp * AHEAD + k;
        const u32 raw[8] = {loaded[k][0].x, loaded[k][0].y, loaded[k][0].z, loaded[k][0].w,
                            loaded[k][1].x, loaded[k][1].y, loaded[k][1].z, loaded[k][1].w};
        float squares = 0;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const float a = low_half(raw[i]), b = high_half(raw[i]);
            squares = fmaf(a, a, fmaf(b, b, squares));
        }
        // 512^-0.5, and e^x as powers of two
        const float scale = up / sqrtf(warp_sum(squares) * square + p.eps) * 0.044194173824159216f * 1.4426950408889634f;
        u32 words[8];
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const float a = low_half(raw[i]) * scale, b = high_half(raw[i]) * scale;
            words[i] = to_halves(a * turns[i].x - b * turns[i].y, a * turns[i].y + b * turns[i].x);
        }
        char* to = queries + lane / 4 * Q_BLOCK;
        *reinterpret_cast<uint4*>(to + swizzled(h, lane % 4 * 2)) = {words[0], words[1], words[2], words[3]};
        *reinterpret_cast<uint4*>(to + swizzled(h, lane % 4 * 2 + 1)) = {words[4], words[5], words[6], words[7]};
    }
}

// shared: barriers and maxima 2048, queries, stages, weights
PS_DEVICE void attend(const AttendRows& p, char* shared) {
    u64 *full = reinterpret_cast<u64*>(shared), *empty = full + STAGES;
    float* exchange = reinterpret_cast<float*>(shared + 1024);  // [2][64]
    char *queries = shared + 2048, *stages = queries + Q_BYTES, *weights = stages + STAGES * STAGE_BYTES;
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, blocks = (p.heads + HEADS - 1) / HEADS;
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) barrier_init(full + i, FETCHERS), barrier_init(empty + i, 8);
        barrier_init_visible();
    }
    let_next_start();
    wait_for_previous();
    __syncthreads();
    if (warp >= 8) {
        fewer_registers<72>();
        fetch_keys(p, stages, full, empty, blocks);
    } else {
        more_registers<216>();
        const int group = warp / 4, g = lane / 4, t = lane % 4, r0 = warp % 4 * 16 + g;  // heads r0 and r0 + 8
        Stages pair;  // the first stage of the pair
        for (int work = blockIdx.x; work < p.rows * blocks; work += gridDim.x) {
            const int row = work / blocks, head0 = work % blocks * HEADS, count = near_keys(p.keys, row) + far_keys(p.keys, row);
            const int pairs = (count + 2 * KEYS - 1) / (2 * KEYS);
            make_queries(p, row, head0, queries);
            fence_for_tensor_cores();
            named_barrier(1, 256);
            float o[DIM / 4], s[KEYS / 2], top[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0};
#pragma unroll
            for (int i = 0; i < DIM / 4; i++) o[i] = 0;
#pragma unroll
            for (int i = 0; i < KEYS / 2; i++) s[i] = 0;
            auto score = [&](const Stages& at) {
                barrier_wait(full + at.at + group, at.parity);
                const u64 q = operand(queries, 1024), k = operand(stages + (at.at + group) * STAGE_BYTES, 1024);
                wgmma_fence();
#pragma unroll
                for (int b = 0; b < BLOCKS; b++)
#pragma unroll
                    for (int i = 0; i < 4; i++)
                        Wgmma<KEYS>::shared(s, q + (b * Q_BLOCK >> 4) + 2 * i, k + (b * STAGE_BLOCK >> 4) + 2 * i, b || i);
                wgmma_commit();
            };
            // The scores of pair j, which are being made, become weights; then the tensor cores are given its values.
            auto weigh = [&](int j) {
                wgmma_wait<0>();
                keep(s), keep(o);
                float most[2] = {-INFINITY, -INFINITY}, factor[2];
#pragma unroll
                for (int i = 0; i < KEYS / 2; i++) {
                    if ((2 * j + group) * KEYS + i / 4 * 8 + 2 * t + i % 2 >= count) s[i] = -INFINITY;
                    most[i / 2 % 2] = fmaxf(most[i / 2 % 2], s[i]);
                }
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    most[h] = fmaxf(most[h], __shfl_xor_sync(ALL, most[h], 1));
                    most[h] = fmaxf(most[h], __shfl_xor_sync(ALL, most[h], 2));
                    exchange[group * HEADS + r0 + 8 * h] = most[h];  // all four lanes
                }
                named_barrier(1, 256);
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    const float now = fmaxf(top[h], fmaxf(most[h], exchange[(1 - group) * HEADS + r0 + 8 * h]));
                    factor[h] = exp2_of(top[h] - now), top[h] = now, sum[h] *= factor[h];
                }
#pragma unroll
                for (int i = 0; i < KEYS / 2; i += 2) {
                    const int h = i / 2 % 2;
                    const float a = exp2_of(s[i] - top[h]), b = exp2_of(s[i + 1] - top[h]);
                    sum[h] += a + b;
                    *reinterpret_cast<u32*>(weights + swizzled(r0 + 8 * h, group * 4 + i / 4) + t * 4) = to_halves(a, b);
                }
#pragma unroll
                for (int i = 0; i < DIM / 4; i++) o[i] *= factor[i / 2 % 2];
                barrier_wait(full + pair.at + 1 - group, pair.parity);
                fence_for_tensor_cores();
                named_barrier(1, 256);
                wgmma_fence();
#pragma unroll
                for (int k = 0; k < 4; k++) {  // sixteen keys
                    const char* values = stages + (pair.at + k / 2) * STAGE_BYTES + group * (BLOCKS / 2) * STAGE_BLOCK + k % 2 * 16 * 128;
                    Wgmma<256>::shared_turned(o, operand(weights, 1024) + 2 * k, operand_turned(values, STAGE_BLOCK));
                }
                wgmma_commit();
            };
            auto release = [&](int stage) {
                if (lane == 0) barrier_arrive(empty + stage), barrier_arrive(empty + stage + 1);
            };
            score(pair);
            for (int j = 0; j + 1 < pairs; j++) {
                weigh(j);
                const int emptied = pair.at;
                pair.advance(), pair.advance();
                score(pair);
                wgmma_wait<1>();  // the values, not the scores
                release(emptied);
            }
            weigh(pairs - 1);
            wgmma_wait<0>();
            keep(o);
            release(pair.at);
            pair.advance(), pair.advance();
            float scale[2];
#pragma unroll
            for (int h = 0; h < 2; h++) {
                sum[h] += __shfl_xor_sync(ALL, sum[h], 1);
                sum[h] += __shfl_xor_sync(ALL, sum[h], 2);
                exchange[group * HEADS + r0 + 8 * h] = sum[h];
            }
            named_barrier(1, 256);
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const int head = head0 + r0 + 8 * h;
                const float sink = head < p.heads ? p.sinks[head] * 1.4426950408889634f : 0.0f;
                // In the order of the keys' halves, whichever of them this is.
                const float total = exchange[r0 + 8 * h] + exchange[HEADS + r0 + 8 * h];
                scale[h] = UP / (total + exp2_of(sink - top[h]));
            }
            store_heads(p, row, head0 + r0, group, o, scale);
        }
    }
}
