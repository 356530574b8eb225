// The indexer (spec §3.9): a score for every compressed row, and the best of them.
//
// Floor: index rows of 128 halfs: 256 B a row, 0.5 MB at 8k tokens, 4 MB at 64k (0.9 µs at 4.5 TB/s); 16 kFLOP a row.
// Scores are made on the tensor cores, sixteen rows a warp against sixteen heads at a time; queries as high and low f16 parts.  Where
// rows are few that is what takes long, so warps share the heads of the same rows.
#include "formats.cuh"

constexpr int INDEX_DIM = 128, WARPS = 8, KEYS = 16;  // keys of a warp at a time
constexpr int SHARERS = 4;                             // warps, at most, that share the heads of their keys

struct Scores {
    const float* q;      // [rows, heads, 128], not yet rotated
    const float* gates;  // [rows, heads], not yet scaled
    RowsAt keys;         // [rows, 128] f16
    const int* positions;
    const char* const* states;
    const float2* turns;  // [rows, rope / 2]
    float* scores;             // [rows, stride]
    int heads, rope, ratio, stride, enough;  // enough: with so few visible rows all are taken, and scores are not needed
    int early;  // the kernel before let this one start only when what wrote queries and places had ended: they can be read at once
};

// A rule of the sequence alone, because the order of sums follows from it.
PS_DEVICE int sharers_of(int tiles, int visible) {
    if (visible <= 1024 && tiles % SHARERS == 0) return SHARERS;
    return visible <= 4096 && tiles % 2 == 0 ? 2 : 1;
}

// grid: (blocks, rows); shared memory: heads · 128 · 4 bytes + heads · 4
extern "C" __global__ void __launch_bounds__(256) index_scores(const __grid_constant__ Scores p) {
    extern __shared__ __align__(128) char shared[];
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4, row = blockIdx.y;
    const int tiles = p.heads / 16;
    __shared__ float shares[SHARERS][WARPS * KEYS];
    char* parts = shared;  // [high, low][tiles][steps 8][lanes][16 bytes]
    const int low = tiles * 8 * 512;
    float* gates = reinterpret_cast<float*>(parts + 2 * low);
    if (!p.early) wait_for_previous();
    const int visible = (__ldcg(p.positions + row) + 1) / p.ratio;  // from the second-level cache, which is true before the wait too
    const int sharers = sharers_of(tiles, visible), keys_of_block = WARPS / sharers * KEYS;
    const bool needed = visible > p.enough && static_cast<int>(blockIdx.x) * keys_of_block < visible;
    const char* keys = nullptr;
    if (needed) {
        // Its last row may be written only now, but all come nearer.
        keys = reinterpret_cast<const char*>(__ldcg(reinterpret_cast<const u64*>(p.states + row))) + p.keys.at;
        if (const int key = blockIdx.x * keys_of_block + threadIdx.x; threadIdx.x < keys_of_block && key < visible)
            prefetch(keys + static_cast<size_t>(key) * p.keys.apart, INDEX_DIM * 2);
        for (int h = threadIdx.x; h < p.heads; h += blockDim.x)
            gates[h] = __ldcg(p.gates + static_cast<size_t>(row) * p.heads + h) * (rsqrtf(static_cast<float>(INDEX_DIM)) * rsqrtf(static_cast<float>(p.heads)));
        const int rotary = lane * 4 - (INDEX_DIM - p.rope);
        float2 turn[2] = {{1, 0}, {1, 0}};
        if (rotary >= 0) turn[0] = __ldcg(p.turns + row * (p.rope / 2) + rotary / 2), turn[1] = __ldcg(p.turns + row * (p.rope / 2) + rotary / 2 + 1);
        // A head a warp, four dims a lane: lane 4 s + u has dims 16 s + 4 u ….
        const float* q = p.q + static_cast<size_t>(row) * p.heads * INDEX_DIM + lane * 4;
        for (int h0 = warp; h0 < p.heads; h0 += 4 * WARPS) {
            float4 f[4];
#pragma unroll
            for (int k = 0; k < 4; k++)
                if (h0 + k * WARPS < p.heads) f[k] = __ldcg(reinterpret_cast<const float4*>(q + (h0 + k * WARPS) * INDEX_DIM));
#pragma unroll
            for (int k = 0; k < 4; k++) {
                const int h = h0 + k * WARPS;
                if (h >= p.heads) break;
                const float v[4] = {f[k].x * turn[0].x - f[k].y * turn[0].y, f[k].x * turn[0].y + f[k].y * turn[0].x,
                                    f[k].z * turn[1].x - f[k].w * turn[1].y, f[k].z * turn[1].y + f[k].w * turn[1].x};
                // Dims 4 u … of a step belong to thread u of a quad: the keys are read in the same order.
                char* to = parts + (h / 16 * 8 + lane / 4) * 512 + (h % 8 * 4 + lane % 4) * 16 + h % 16 / 8 * 4;
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    const u16 a = float_to_half(v[2 * i]), b = float_to_half(v[2 * i + 1]);
                    *reinterpret_cast<u32*>(to + i * 8) = a | static_cast<u32>(b) << 16;
                    *reinterpret_cast<u32*>(to + low + i * 8) = float_to_half(v[2 * i] - half_to_float(a)) |
                                                               static_cast<u32>(float_to_half(v[2 * i + 1] - half_to_float(b))) << 16;
                }
            }
        }
    }
    if (p.early) wait_for_previous();
    let_next_start();  // only now: attention reads queries before it waits for the selection
    if (!needed) return;
    __syncthreads();
    const int share = warp % sharers, own = warp / sharers * KEYS;  // own: the warp's first among the block's keys
#pragma unroll 1
    for (int first = blockIdx.x * keys_of_block; first < visible; first += gridDim.x * keys_of_block) {
        uint2 b[2][8];  // keys first + own + 8 n + g, dims 16 s + 4 t …
#pragma unroll
        for (int n = 0; n < 2; n++) {
            const int key = first + own + 8 * n + g;
#pragma unroll
            for (int s = 0; s < 8; s++)
                b[n][s] = key < visible ? load8(keys + static_cast<size_t>(key) * p.keys.apart + s * 32 + t * 8) : uint2{0, 0};
        }
        float score[2][2] = {};  // keys 8 n + 2t, 8 n + 2t + 1
#pragma unroll 1
        for (int m = share; m < tiles; m += sharers) {
            float c[2][4] = {}, d[2][4] = {};
#pragma unroll
            for (int s = 0; s < 8; s++) {
                const uint4 x = load16(parts + (m * 8 + s) * 512 + lane * 16), y = load16(parts + low + (m * 8 + s) * 512 + lane * 16);
                const u32 high[4] = {x.x, x.y, x.z, x.w}, rest[4] = {y.x, y.y, y.z, y.w};
#pragma unroll
                for (int n = 0; n < 2; n++) mma_halves(c[n], high, b[n][s]), mma_halves(d[n], rest, b[n][s]);
            }
            const float g0 = gates[m * 16 + g], g1 = gates[m * 16 + g + 8];
#pragma unroll
            for (int n = 0; n < 2; n++)
#pragma unroll
                for (int k = 0; k < 2; k++)
                    score[n][k] += fmaf(g0, fmaxf(c[n][k] + d[n][k], 0.0f), g1 * fmaxf(c[n][2 + k] + d[n][2 + k], 0.0f));
        }
#pragma unroll
        for (int n = 0; n < 2; n++)
#pragma unroll
            for (int k = 0; k < 2; k++) {
#pragma unroll
                for (int d = 4; d < 32; d <<= 1) score[n][k] += __shfl_xor_sync(ALL, score[n][k], d);
                if (g == 0) shares[share][own + 8 * n + 2 * t + k] = score[n][k];
            }
        __syncthreads();
        if (const int i = threadIdx.x, key = first + i; i < keys_of_block && key < visible) {
            float sum = shares[0][i];
            for (int k = 1; k < sharers; k++) sum += shares[k][i];
            p.scores[static_cast<size_t>(row) * p.stride + key] = sum;
        }
        __syncthreads();  // the shares have been read
    }
}

struct Select {
    const float* scores;  // [rows, stride]
    const int* positions;
    int* picks;   // [rows, count], in rising order
    int* counts;  // [rows]
    int stride, ratio, count;
};

constexpr int SELECT_THREADS = 1024;

// A thread has a score: the largest `worst` that at least `wanted` of the block's keys reach, bit by bit from the top.  Ends as soon as
// no more than those reach it.
PS_DEVICE u32 worst_of(u32 key, int wanted) {
    u32 worst = 0;
#pragma unroll 1
    for (u32 bit = 1u << 31; bit; bit >>= 1) {
        const int reach = __syncthreads_count(key >= (worst | bit));
        if (reach >= wanted) worst |= bit;
        if (reach == wanted) break;
    }
    return worst;
}

// One block a row: the best `count` of the visible rows, ties to the lower one.  The value of the worst that is taken is found by
// its bits: of many rows eight at a time from the top; then all above it are taken, and of its equals the first ones.
extern "C" __global__ void __launch_bounds__(SELECT_THREADS) index_select(const __grid_constant__ Select p) {
    __shared__ int counts[256], sums[2][WARP];
    __shared__ u32 found[2];
    const int row = blockIdx.x, warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    let_next_start();
    wait_for_previous();
    const int visible = (p.positions[row] + 1) / p.ratio;
    int* picks = p.picks + static_cast<size_t>(row) * p.count;
    if (threadIdx.x == 0) p.counts[row] = min(visible, p.count);
    if (visible <= p.count) {
        for (int i = threadIdx.x; i < visible; i += SELECT_THREADS) picks[i] = i;
        return;
    }
    const float* scores = p.scores + static_cast<size_t>(row) * p.stride;
    auto key = [&](int i) { return static_cast<u32>(rank_of(scores[i], 0) >> 32); };
    if (visible <= SELECT_THREADS) {  // a thread a row
        const bool there = threadIdx.x < static_cast<u32>(visible);
        const u32 k = there ? key(threadIdx.x) : 0, worst = worst_of(k, p.count);
        const u32 over = __ballot_sync(ALL, there && k > worst), same = __ballot_sync(ALL, there && k == worst), below = (1u << lane) - 1;
        if (lane == 0) sums[0][warp] = __popc(over), sums[1][warp] = __popc(same);
        __syncthreads();
        const int mine = sums[0][lane], wanted = p.count - __reduce_add_sync(ALL, mine);  // of the equals
        const int above = __reduce_add_sync(ALL, lane < warp ? mine : 0), equal = __reduce_add_sync(ALL, lane < warp ? sums[1][lane] : 0);
        const int before = equal + __popc(same & below), at = above + __popc(over & below) + min(before, wanted);
        if (there && (k > worst || (k == worst && before < wanted))) picks[at] = threadIdx.x;
        return;
    }
    constexpr int AHEAD = 8;  // loads on their way
    u32 prefix = 0;
    int wanted = p.count;  // of those that share the prefix
#pragma unroll 1
    for (int shift = 24; shift >= 0; shift -= 8) {
        for (int i = threadIdx.x; i < 256; i += SELECT_THREADS) counts[i] = 0;
        __syncthreads();
#pragma unroll 1
        for (int first = threadIdx.x; first < visible + static_cast<int>(threadIdx.x); first += AHEAD * SELECT_THREADS) {
            u32 k[AHEAD];
#pragma unroll
            for (int j = 0; j < AHEAD; j++) {
                const int i = first + j * SELECT_THREADS;
                k[j] = i < visible ? key(i) : 0;
            }
#pragma unroll
            for (int j = 0; j < AHEAD; j++) {
                const bool there = first + j * SELECT_THREADS < visible;
                if (shift == 24) {  // signs and exponents are much the same: lanes that have the same one count together
                    const u32 bucket = there ? k[j] >> 24 : 256, same = __match_any_sync(ALL, bucket);
                    if (there && lane == __ffs(same) - 1) atomicAdd(&counts[bucket], __popc(same));
                } else if (there && k[j] >> (shift + 8) == prefix >> (shift + 8)) {
                    atomicAdd(&counts[k[j] >> shift & 255], 1);
                }
            }
        }
        __syncthreads();
        if (warp == 0) {  // eight buckets a lane, from the top
            int own = 0;
            for (int k = 0; k < 8; k++) own += counts[255 - lane * 8 - k];
            int before = own;
            for (int d = 1; d < WARP; d <<= 1) {
                const int other = __shfl_up_sync(ALL, before, d);
                if (lane >= d) before += other;
            }
            before -= own;
            if (before < wanted && before + own >= wanted) {
                for (int k = 0; k < 8; k++) {
                    const int bucket = 255 - lane * 8 - k;
                    if (before + counts[bucket] >= wanted) {
                        found[0] = prefix | static_cast<u32>(bucket) << shift, found[1] = static_cast<u32>(wanted - before);
                        break;
                    }
                    before += counts[bucket];
                }
            }
        }
        __syncthreads();
        prefix = found[0], wanted = static_cast<int>(found[1]);
        __syncthreads();
    }
    // Every warp has a stretch of neighbours, so that the picks come in rising order.
    const int each = (visible + SELECT_THREADS - 1) / SELECT_THREADS * WARP, first = warp * each, end = min(first + each, visible);
    const u32 below = (1u << lane) - 1;
    int above = 0, equal = 0;
#pragma unroll 4
    for (int i = first; i < end; i += WARP) {
        const bool there = i + lane < end;
        const u32 k = there ? key(i + lane) : 0;
        above += __popc(__ballot_sync(ALL, there && k > prefix)), equal += __popc(__ballot_sync(ALL, there && k == prefix));
    }
    if (lane == 0) sums[0][warp] = above, sums[1][warp] = equal;
    __syncthreads();
    above = __reduce_add_sync(ALL, lane < warp ? sums[0][lane] : 0), equal = __reduce_add_sync(ALL, lane < warp ? sums[1][lane] : 0);
#pragma unroll 4
    for (int i = first; i < end; i += WARP) {
        const bool there = i + lane < end;
        const u32 k = there ? key(i + lane) : 0;
        const u32 over = __ballot_sync(ALL, there && k > prefix), same = __ballot_sync(ALL, there && k == prefix);
        const int before = equal + __popc(same & below), at = above + __popc(over & below) + min(before, wanted);
        if (there && (k > prefix || (k == prefix && before < wanted))) picks[at] = i + lane;
        above += __popc(over), equal += __popc(same);
    }
}
