// The indexer (spec §3.9): a score for every compressed row, and the best of them.
//
// Floor: index rows of 128 halfs: 256 B a row, 0.5 MB at 8k tokens, 4 MB at 64k (0.9 µs at 4.5 TB/s); 16 kFLOP a row.
// Scores are made on the tensor cores, eight rows a warp against all heads; queries as high and low f16 parts.
#include "formats.cuh"

constexpr int INDEX_DIM = 128, WARPS = 8;

struct Scores {
    const float* q;      // [rows, heads, 128], not yet rotated
    const float* gates;  // [rows, heads], not yet scaled
    RowsAt keys;         // [rows, 128] f16
    const int* positions;
    const char* const* states;
    const float2* turns;  // [rows, rope / 2]
    float* scores;             // [rows, stride]
    int heads, rope, ratio, stride, enough;  // enough: with so few visible rows all are taken, and scores are not needed
};

// grid: (blocks, rows); shared memory: heads · 128 · 4 bytes + heads · 4
extern "C" __global__ void __launch_bounds__(256) index_scores(const __grid_constant__ Scores p) {
    extern __shared__ __align__(128) char shared[];
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4, row = blockIdx.y;
    const int tiles = p.heads / 16;
    char* parts = shared;  // [high, low][tiles][steps 8][lanes][16 bytes]
    const int low = tiles * 8 * 512;
    float* gates = reinterpret_cast<float*>(parts + 2 * low);
    let_next_start();
    wait_for_previous();
    const int position = p.positions[row], visible = (position + 1) / p.ratio;
    if (visible <= p.enough || static_cast<int>(blockIdx.x) * WARPS * 8 >= visible) return;
    for (int h = threadIdx.x; h < p.heads; h += blockDim.x)
        gates[h] = p.gates[static_cast<size_t>(row) * p.heads + h] * (rsqrtf(static_cast<float>(INDEX_DIM)) * rsqrtf(static_cast<float>(p.heads)));
    // A head a warp, four dims a lane: lane 4 s + u has dims 16 s + 4 u ….
    for (int h = warp; h < p.heads; h += WARPS) {
        const float4 f = *reinterpret_cast<const float4*>(p.q + (static_cast<size_t>(row) * p.heads + h) * INDEX_DIM + lane * 4);
        float v[4] = {f.x, f.y, f.z, f.w};
        const int rotary = lane * 4 - (INDEX_DIM - p.rope);
        if (rotary >= 0) {
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const float2 turn = p.turns[row * (p.rope / 2) + rotary / 2 + i];
                const float a = v[2 * i], b = v[2 * i + 1];
                v[2 * i] = a * turn.x - b * turn.y, v[2 * i + 1] = a * turn.y + b * turn.x;
            }
        }
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
    __syncthreads();
    const char* keys = p.states[row] + p.keys.at;
    for (int first = (blockIdx.x * WARPS + warp) * 8; first < visible; first += gridDim.x * WARPS * 8) {
        uint2 b[8];  // key `first + g`, dims 16 s + 4 t …
#pragma unroll
        for (int s = 0; s < 8; s++)
            b[s] = first + g < visible ? load8(keys + static_cast<size_t>(first + g) * p.keys.apart + s * 32 + t * 8) : uint2{0, 0};
        float score[2] = {0, 0};  // keys 2t, 2t + 1
        for (int m = 0; m < tiles; m++) {
            float c[4] = {}, d[4] = {};
#pragma unroll
            for (int s = 0; s < 8; s++) {
                const uint4 x = load16(parts + (m * 8 + s) * 512 + lane * 16), y = load16(parts + low + (m * 8 + s) * 512 + lane * 16);
                const u32 high[4] = {x.x, x.y, x.z, x.w}, rest[4] = {y.x, y.y, y.z, y.w};
                mma_halves(c, high, b[s]);
                mma_halves(d, rest, b[s]);
            }
            const float g0 = gates[m * 16 + g], g1 = gates[m * 16 + g + 8];
#pragma unroll
            for (int k = 0; k < 2; k++)
                score[k] += fmaf(g0, fmaxf(c[k] + d[k], 0.0f), g1 * fmaxf(c[2 + k] + d[2 + k], 0.0f));
        }
#pragma unroll
        for (int k = 0; k < 2; k++) {
#pragma unroll
            for (int d = 4; d < 32; d <<= 1) score[k] += __shfl_xor_sync(ALL, score[k], d);
            if (g == 0 && first + 2 * t + k < visible) p.scores[static_cast<size_t>(row) * p.stride + first + 2 * t + k] = score[k];
        }
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

// One block a row: the best `count` of the visible rows, ties to the lower one.  The value of the worst that is taken is found by
// its bits, eight at a time from the top; then all above it are taken, and of its equals the first ones.
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
    u32 prefix = 0;
    int wanted = p.count;  // of those that share the prefix
    for (int shift = 24; shift >= 0; shift -= 8) {
        for (int i = threadIdx.x; i < 256; i += SELECT_THREADS) counts[i] = 0;
        __syncthreads();
        for (int i = threadIdx.x; i < visible; i += SELECT_THREADS) {
            const u32 k = key(i);
            if (shift == 24 || k >> (shift + 8) == prefix >> (shift + 8)) atomicAdd(&counts[k >> shift & 255], 1);
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
    // Every thread has a stretch of neighbours, so that the picks come in rising order.
    const int each = (visible + SELECT_THREADS - 1) / SELECT_THREADS, first = threadIdx.x * each, end = min(first + each, visible);
    int above = 0, equal = 0;
    for (int i = first; i < end; i++) {
        const u32 k = key(i);
        above += k > prefix, equal += k == prefix;
    }
    int scan[2] = {above, equal};
#pragma unroll
    for (int w = 0; w < 2; w++) {
        for (int d = 1; d < WARP; d <<= 1) {
            const int other = __shfl_up_sync(ALL, scan[w], d);
            if (lane >= d) scan[w] += other;
        }
        if (lane == WARP - 1) sums[w][warp] = scan[w];
    }
    __syncthreads();
    int base[2] = {scan[0] - above, scan[1] - equal};
    for (int w = 0; w < warp; w++) base[0] += sums[0][w], base[1] += sums[1][w];
    int equals = base[1], at = base[0] + min(base[1], wanted);
    for (int i = first; i < end; i++) {
        const u32 k = key(i);
        if (k > prefix || (k == prefix && equals < wanted)) picks[at++] = i;
        equals += k == prefix;
    }
}
