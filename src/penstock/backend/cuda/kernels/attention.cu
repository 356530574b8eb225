// Attention of one token a row over the raw window, compressed rows and the sink (spec §3.10): every key row is also the value.
//
// One row, 640 keys: 640 KB of keys (0.15 µs at 4.5 TB/s), 84 MFLOP.  What counts is the chain: queries, keys, scores, weights, sums,
// and sums of sums.  A block has 16 heads and a share of the keys, 48 at a time; a warp has 64 of the 512 channels.  The tensor cores
// multiply: keys are exact f16, queries and weights go as high and low f16 parts, so that 22 bits of them count.  The blocks of a cluster
// have the shares of the same heads; every one of them finishes some heads, from sums that the others have written into its shared memory:
// adds them in a fixed order, adds the sink and turns the result back by the query's position.
//
// With so many rows that the card has no place for all clusters at once, the last of them would take as long again (7 rows 11 µs, 8 rows 18).
// Then blocks stand alone (`attend_apart`), leave their sums in memory, and a second kernel finishes heads (`attend_join`), with the same bits.
// Cards without clusters always do it so.
#include "cluster.cuh"
#include "columns.cuh"

constexpr int DIM = 512, ROPE = 64, HEADS = 16, KEYS = 48, WARPS = 8, SLICE = DIM / WARPS, STEPS = SLICE / 16;
constexpr int CLUSTER = 8;                     // shares of a row's keys
constexpr int OWN = HEADS / CLUSTER;           // heads that a block finishes
constexpr int LEAST = 32;                      // keys of a share: fewer are not worth a block's sums
constexpr int KEY_STRIDE = DIM * 2 + 16;       // bytes; 8 rows of 16 bytes lie in different banks
constexpr int PART_STRIDE = KEYS + 8;          // floats; 4 rows of 8 bytes
constexpr int WEIGHT_STRIDE = KEYS * 2 + 16;   // bytes; 8 rows of 16 bytes
constexpr int STAGE_STRIDE = DIM + 8;          // floats; 4 rows of 8 bytes

struct Attention {
    const float* q;          // [rows, heads, 512] before norm and rotation
    const int* picks;        // [rows, pick_stride]: compressed rows to see, as many as there are or fit; or null: all visible ones
    const int* positions;          // [rows]
    const char* const* states;     // [rows]: the memory of a row's sequence
    const float2* turns;           // [rows, 32]: cosine and sine of a row's position
    const float* sinks;            // [heads]
    float* out;      // [rows, heads · 512] or null
    u8* digits;      // images of the output groups [pieces of rows][groups][InputPlan {columns, rows of a piece, DIGITS}], or null
    RowsAt window, compressed;  // [capacity, 512] f16, position p at p % capacity; [rows, 512] f16, with a ratio
    int heads, rows, window_length, ratio, pick_stride, group_heads;
    int early;  // of the kernels before, one let the next start only when what wrote queries and places had ended: they can be read at once
    float eps;
    float* apart;       // [rows, heads / 16, CLUSTER, 16, 512]: sums of blocks that stand alone
    float2* apart_tops; // [rows, heads / 16, CLUSTER, 16]: their largest score and sum of weights
};

struct Shared {
    union {
        char keys[KEYS][KEY_STRIDE];
        float stage[HEADS][STAGE_STRIDE];          // then: what goes to the other blocks
    };
    union {
        float parts[WARPS][HEADS][PART_STRIDE];    // scores, of a warp's channels
        float sums[CLUSTER][OWN][DIM];             // then: what the blocks of the cluster have summed for this one's heads
    };
    char weights[2][HEADS][WEIGHT_STRIDE];         // high, low
    float2 tops[CLUSTER][OWN];                     // their largest score and sum of weights
    u64 keys_here, sums_here;                      // barriers
    float squares[WARPS][HEADS], top[HEADS], sum[HEADS], factor[HEADS], largest[WARPS];
};

PS_DEVICE void ldmatrix(u32 (&d)[4], const void* p) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3]) : "r"(shared_address(p)));
}
PS_DEVICE void ldmatrix_turned(u32 (&d)[4], const void* p) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3]) : "r"(shared_address(p)));
}
// Two numbers as high and low f16 parts.
PS_DEVICE void split_pair(float a, float b, u32& high, u32& low) {
    const u16 ha = float_to_half(a), hb = float_to_half(b);
    high = ha | static_cast<u32>(hb) << 16;
    low = float_to_half(a - half_to_float(ha)) | static_cast<u32>(float_to_half(b - half_to_float(hb))) << 16;
}

// A row's keys: the window first, then compressed rows; equal shares for the blocks.
struct Keys {
    int near, count, each, shares;

    PS_DEVICE Keys(const Attention& p, int position) {
        const int visible = p.ratio ? (position + 1) / p.ratio : 0;
        near = min(position + 1, p.window_length), count = near + (p.picks ? min(visible, p.pick_stride) : visible);
        each = max((count + CLUSTER - 1) / CLUSTER, LEAST), shares = (count + each - 1) / each;
    }
};

// What a thread finishes: channels `channel` … of a head, of which a block has OWN.
constexpr int CHANNELS = 2 * OWN;

// share: of share lane % CLUSTER, the largest score and the sum of weights; sums_of: where a share has what it summed for these channels.
template <class SumsOf>
PS_DEVICE void finish(const Attention& p, int row, int head, int channel, float sink, const float2 (&turn)[OWN], float2 share, int shares,
                      const SumsOf& sums_of, float (&largest_of)[WARPS]) {
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    float top = share.x;
#pragma unroll
    for (int d = CLUSTER / 2; d > 0; d >>= 1) top = fmaxf(top, __shfl_xor_sync(ALL, top, d));
    top = fmaxf(top, sink);
    const float factor = expf(share.x - top);
    float sum = share.y * factor;
#pragma unroll
    for (int d = CLUSTER / 2; d > 0; d >>= 1) sum += __shfl_xor_sync(ALL, sum, d);
    const float inverse = __frcp_rn(sum + expf(sink - top));
    float x[CHANNELS] = {};
#pragma unroll 4
    for (int s = 0; s < shares; s++) {
        const float f = __shfl_sync(ALL, factor, s);
        const float4 v = sums_of(s);
        x[0] = fmaf(v.x, f, x[0]), x[1] = fmaf(v.y, f, x[1]), x[2] = fmaf(v.z, f, x[2]), x[3] = fmaf(v.w, f, x[3]);
    }
    float largest = 0;
#pragma unroll
    for (int i = 0; i < OWN; i++) {
        float a = x[2 * i] * inverse, b = x[2 * i + 1] * inverse;
        if (channel >= DIM - ROPE) {  // back by the query's position
            const float turned = a * turn[i].x + b * turn[i].y;
            b = b * turn[i].x - a * turn[i].y, a = turned;
        }
        x[2 * i] = a, x[2 * i + 1] = b;
        largest = fmaxf(largest, fmaxf(fabsf(a), fabsf(b)));
        if (p.out) *reinterpret_cast<float2*>(p.out + (static_cast<size_t>(row) * p.heads + head) * DIM + channel + 2 * i) = {a, b};
    }
    if (!p.digits) return;
    constexpr int CELL_WARPS = CELL / (CHANNELS * WARP);
    largest = warp_largest(largest);
    if (lane == 0) largest_of[warp] = largest;
    __syncthreads();
#pragma unroll
    for (int w = 0; w < CELL_WARPS; w++) largest = fmaxf(largest, largest_of[warp / CELL_WARPS * CELL_WARPS + w]);
    const float2 scale = digit_scale(largest);
    const InputPlan plan = {p.group_heads * DIM, min(p.rows, PIECE), DIGITS};
    const int number = row / PIECE * (p.heads / p.group_heads) + head / p.group_heads, in_piece = row % PIECE;
    char* image = reinterpret_cast<char*>(p.digits) + static_cast<size_t>(number) * plan.bytes();
    const int column = head % p.group_heads * DIM + channel;
    char* planes = image + 2 * in_piece * plan.digit_stride() + column;
#pragma unroll
    for (int i = 0; i < OWN; i++) {
        const int2 a = digits_of(x[2 * i], scale.y), b = digits_of(x[2 * i + 1], scale.y);
        *reinterpret_cast<u16*>(planes + 2 * i) = static_cast<u16>((a.x & 255) | (b.x & 255) << 8);
        *reinterpret_cast<u16*>(planes + plan.digit_stride() + 2 * i) = static_cast<u16>((a.y & 255) | (b.y & 255) << 8);
    }
    if (column % CELL == 0) reinterpret_cast<float*>(image + plan.scales_at())[column / CELL * 8 + in_piece] = scale.x;
}

// grid: (heads / 16 · CLUSTER, rows)
template <bool APART>
PS_DEVICE void attend_block(const Attention& p) {
    extern __shared__ __align__(128) char memory[];
    Shared& shared = *reinterpret_cast<Shared*>(memory);
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    const int rank = APART ? blockIdx.x % CLUSTER : cluster_rank(), head0 = blockIdx.x / CLUSTER * HEADS, row = blockIdx.y;
    const int own = threadIdx.x * CHANNELS / DIM, head = head0 + rank * OWN + own, channel = threadIdx.x * CHANNELS % DIM;
    if (threadIdx.x == 0) barrier_init(&shared.keys_here, block_copiers().arrivals()), barrier_init(&shared.sums_here, 1), barrier_init_visible();
    const float sink = p.sinks[head];
    if (threadIdx.x < HEADS) shared.top[threadIdx.x] = -INFINITY, shared.sum[threadIdx.x] = 0;
    if (!p.early) wait_for_previous();

    const int position = __ldcg(p.positions + row);  // from the second-level cache, which is true before the wait too
    const char* state = reinterpret_cast<const char*>(__ldcg(reinterpret_cast<const u64*>(p.states + row)));
    // Queries: norm, rotation, scale 512^-0.5.  A step of 16 channels: registers 0 and 1 have channels 2t, 2t + 1 of heads g and g + 8,
    // registers 2 and 3 channels 2t + 8, ….
    float2 turn[OWN] = {};  // of the thread's own channels
    u32 q_high[STEPS][4], q_low[STEPS][4];
    float2 v[STEPS][4], by[STEPS][2];
    const float* q = p.q + (static_cast<size_t>(row) * p.heads + head0 + g) * DIM + warp * SLICE + 2 * t;
    const float2* turns = p.turns + row * (ROPE / 2);
#pragma unroll
    for (int s = 0; s < STEPS; s++)
#pragma unroll
        for (int k = 0; k < 4; k++) v[s][k] = __ldcg(reinterpret_cast<const float2*>(q + k % 2 * 8 * DIM + s * 16 + k / 2 * 8));
    if (channel >= DIM - ROPE) {
#pragma unroll
        for (int i = 0; i < OWN; i++) turn[i] = __ldcg(turns + (channel - (DIM - ROPE)) / 2 + i);
    }
    if (warp == WARPS - 1) {  // the last 64 channels
#pragma unroll
        for (int s = 0; s < STEPS; s++) by[s][0] = __ldcg(turns + s * 8 + t), by[s][1] = __ldcg(turns + s * 8 + 4 + t);
    }
    const Keys keys(p, position);
    const int near = keys.near, first = rank * keys.each, end = min(first + keys.each, keys.count), shares = keys.shares;
    const int ring = (position - near + 1) % p.window.capacity;  // where the window's first key is
    const int* picks = p.picks + static_cast<size_t>(row) * p.pick_stride - near;
    if (const int ahead = first + static_cast<int>(threadIdx.x) * WARP; p.picks && ahead < end) prefetch(picks + max(ahead, near));
    auto row_of = [&](int key, int pick) {  // pick: which compressed row it is, if it is one
        int slot = ring + key;
        if (slot >= p.window.capacity) slot -= p.window.capacity;
        return state + (key < near ? p.window.at + static_cast<size_t>(slot) * p.window.apart
                                   : p.compressed.at + static_cast<size_t>(pick) * p.compressed.apart);
    };
    // Keys come nearer as far as they are known, though the newest may be written only now.
    for (int key = first + threadIdx.x; key < min(end, p.picks ? near : keys.count); key += WARPS * WARP) prefetch(row_of(key, key - near), DIM * 2);
    // Rows behind the last key are multiplied with zeros, so they must be numbers.
    for (int i = max(end - first, 0) * (KEY_STRIDE / 16) + threadIdx.x; i < min((end - first + 15) / 16 * 16, KEYS) * (KEY_STRIDE / 16); i += WARPS * WARP)
        reinterpret_cast<uint4*>(shared.keys)[i] = {0, 0, 0, 0};
    float squares[2] = {};
#pragma unroll
    for (int s = 0; s < STEPS; s++)
#pragma unroll
        for (int k = 0; k < 4; k++) squares[k % 2] = fmaf(v[s][k].x, v[s][k].x, fmaf(v[s][k].y, v[s][k].y, squares[k % 2]));
#pragma unroll
    for (int h = 0; h < 2; h++) {
        squares[h] += __shfl_xor_sync(ALL, squares[h], 1);
        squares[h] += __shfl_xor_sync(ALL, squares[h], 2);
        if (t == 0) shared.squares[warp][g + 8 * h] = squares[h];
    }
    if (warp == WARPS - 1) {
#pragma unroll
        for (int s = 0; s < STEPS; s++)
#pragma unroll
            for (int k = 0; k < 4; k++) {
                const float2 a = v[s][k], b = by[s][k / 2];
                v[s][k] = {a.x * b.x - a.y * b.y, a.x * b.y + a.y * b.x};
            }
    }
    writes_visible();
    __syncthreads();
    {
        float factor[2] = {};
#pragma unroll
        for (int w = 0; w < WARPS; w++) factor[0] += shared.squares[w][g], factor[1] += shared.squares[w][g + 8];
#pragma unroll
        for (int h = 0; h < 2; h++) factor[h] = inverse_root(factor[h] / DIM + p.eps) * 0.044194173824159216f;
#pragma unroll
        for (int s = 0; s < STEPS; s++)
#pragma unroll
            for (int k = 0; k < 4; k++) split_pair(v[s][k].x * factor[k % 2], v[s][k].y * factor[k % 2], q_high[s][k], q_low[s][k]);
    }
    if (p.early) wait_for_previous();
    let_next_start();  // only now: see `early`

    float o[SLICE / 8][4] = {};  // channels 8 n … of the warp's, heads g and g + 8
#pragma unroll 1
    for (int at = first, phase = 0; at < end; at += KEYS, phase ^= 1) {
        const int here = min(KEYS, end - at), sixteens = (here + 15) / 16;
        if (at > first) __syncthreads();  // all are done with the keys before
        if (BULK && threadIdx.x == 0) barrier_expect(&shared.keys_here, here * DIM * 2);
        const char* from = nullptr;
        if (const int k = lane * WARPS + warp; k < here) {  // spread over the warps: copies of a warp go one by one
            const int key = at + k;
            from = row_of(key, p.picks && key >= near ? picks[key] : key - near);
            if (BULK) bulk_copy(shared.keys[k], from, DIM * 2, &shared.keys_here);
        }
        if (!BULK) {  // the whole warp for one key after the other
            const Copiers lanes = warp_copiers(lane);
#pragma unroll 1
            for (int k = warp, i = 0; k < here; k += WARPS, i++)
                lanes.copy(shared.keys[k], reinterpret_cast<const char*>(__shfl_sync(ALL, reinterpret_cast<u64>(from), i)), DIM * 2, &shared.keys_here);
            lanes.close(&shared.keys_here);
        }
        barrier_wait(&shared.keys_here, phase);
#pragma unroll 1
        for (int m = 0; m < sixteens; m++) {  // scores of sixteen keys
            float c[2][4] = {}, d[2][4] = {};
#pragma unroll
            for (int n = 0; n < 2; n++)
#pragma unroll
                for (int s = 0; s < STEPS; s += 2) {
                    u32 b[4];
                    ldmatrix(b, &shared.keys[m * 16 + n * 8 + lane % 8][warp * SLICE * 2 + s * 32 + lane / 8 * 16]);
                    mma_halves(c[n], q_high[s], {b[0], b[1]});
                    mma_halves(d[n], q_low[s], {b[0], b[1]});
                    mma_halves(c[n], q_high[s + 1], {b[2], b[3]});
                    mma_halves(d[n], q_low[s + 1], {b[2], b[3]});
                }
#pragma unroll
            for (int n = 0; n < 2; n++)
#pragma unroll
                for (int h = 0; h < 2; h++)
                    *reinterpret_cast<float2*>(&shared.parts[warp][g + 8 * h][m * 16 + n * 8 + 2 * t]) = {c[n][2 * h] + d[n][2 * h],
                                                                                                         c[n][2 * h + 1] + d[n][2 * h + 1]};
        }
        __syncthreads();
        {  // weights: half a warp has a head
            const int h = warp * 2 + lane / 16, k = lane % 16;
            float s[KEYS / 16], most = -INFINITY, total = 0;
#pragma unroll
            for (int i = 0; i < KEYS / 16; i++) {
                s[i] = 0;
#pragma unroll
                for (int w = 0; w < WARPS; w++) s[i] += shared.parts[w][h][i * 16 + k];
                if (i * 16 + k >= here) s[i] = -INFINITY;  // whatever was there
                most = fmaxf(most, s[i]);
            }
            const float before = shared.top[h], sum = shared.sum[h];
#pragma unroll
            for (int d = 8; d > 0; d >>= 1) most = fmaxf(most, __shfl_xor_sync(ALL, most, d));
            const float top = fmaxf(before, most);
#pragma unroll
            for (int i = 0; i < KEYS / 16; i++) {
                const float w = expf(s[i] - top);
                total += w;
                const u16 high = float_to_half(w);
                *reinterpret_cast<u16*>(&shared.weights[0][h][(i * 16 + k) * 2]) = high;
                *reinterpret_cast<u16*>(&shared.weights[1][h][(i * 16 + k) * 2]) = float_to_half(w - half_to_float(high));
            }
#pragma unroll
            for (int d = 8; d > 0; d >>= 1) total += __shfl_xor_sync(ALL, total, d);
            __syncwarp();  // all have read what is written now
            if (k == 0) {
                const float factor = expf(before - top);
                shared.top[h] = top, shared.sum[h] = sum * factor + total, shared.factor[h] = factor;
            }
        }
        __syncthreads();
        if (!APART && at + KEYS >= end) cluster_arrive_relaxed();  // the scores' place is free for sums
        const float f0 = shared.factor[g], f1 = shared.factor[g + 8];
#pragma unroll
        for (int n = 0; n < SLICE / 8; n++) o[n][0] *= f0, o[n][1] *= f0, o[n][2] *= f1, o[n][3] *= f1;
#pragma unroll 1
        for (int m = 0; m < sixteens; m++) {
            u32 high[4], rest[4];
            ldmatrix(high, &shared.weights[0][lane % 16][m * 32 + lane / 16 * 16]);
            ldmatrix(rest, &shared.weights[1][lane % 16][m * 32 + lane / 16 * 16]);
#pragma unroll
            for (int n = 0; n < SLICE / 8; n += 2) {
                u32 b[4];  // two eights of channels
                ldmatrix_turned(b, &shared.keys[m * 16 + lane % 16][(warp * SLICE + n * 8 + lane / 16 * 8) * 2]);
                mma_halves(o[n], high, {b[0], b[1]});
                mma_halves(o[n + 1], high, {b[2], b[3]});
                mma_halves(o[n], rest, {b[0], b[1]});
                mma_halves(o[n + 1], rest, {b[2], b[3]});
            }
        }
    }
    if constexpr (APART) {
        if (first >= end) return;
        const size_t block = (static_cast<size_t>(row) * gridDim.x + blockIdx.x) * HEADS;
#pragma unroll
        for (int n = 0; n < SLICE / 8; n++)
#pragma unroll
            for (int h = 0; h < 2; h++)
                *reinterpret_cast<float2*>(p.apart + (block + g + 8 * h) * DIM + warp * SLICE + n * 8 + 2 * t) = {o[n][2 * h], o[n][2 * h + 1]};
        if (threadIdx.x < HEADS) p.apart_tops[block + threadIdx.x] = {shared.top[threadIdx.x], shared.sum[threadIdx.x]};
        return;
    }
    if (first < end) {
        __syncthreads();  // all are done with the keys
#pragma unroll
        for (int n = 0; n < SLICE / 8; n++)
#pragma unroll
            for (int h = 0; h < 2; h++)
                *reinterpret_cast<float2*>(&shared.stage[g + 8 * h][warp * SLICE + n * 8 + 2 * t]) = {o[n][2 * h], o[n][2 * h + 1]};
        writes_visible();
        __syncthreads();
    } else {
        cluster_arrive_relaxed();
    }
    cluster_wait();
    if (first < end && lane < 2) {
        const int to = warp * 2 + lane;
        const u32 bar = shared_of(&shared.sums_here, to / OWN);
        if (to / OWN != rank) send_bulk(shared_of(shared.sums[rank][to % OWN], to / OWN), shared.stage[to], DIM * sizeof(float), bar);
        send(shared_of(&shared.tops[rank][to % OWN], to / OWN), float2{shared.top[to], shared.sum[to]}, bar);
    }
    if (first < end && warp * 2 / OWN == rank) {  // a block's own: copies in bulk are for others
#pragma unroll 4
        for (int i = lane; i < DIM; i += WARP) {
            const int to = warp * 2 + i / (DIM / 2), at = i % (DIM / 2) * 2;
            send(shared_of(&shared.sums[rank][to % OWN][at], rank), float2{shared.stage[to][at], shared.stage[to][at + 1]}, shared_of(&shared.sums_here, rank));
        }
    }
    if (threadIdx.x == 0) barrier_expect(&shared.sums_here, shares * OWN * (DIM * sizeof(float) + sizeof(float2)));
    barrier_wait(&shared.sums_here, 0);
    __syncwarp();
    cluster_arrive_relaxed();  // nobody ends before all have what they wait for

    // Lane s has share s; those that saw no key come last and are left out.
    float2 share = {-INFINITY, 0};
    if (lane % CLUSTER < shares) share = shared.tops[lane % CLUSTER][own];
    auto sums_of = [&](int s) { return *reinterpret_cast<const float4*>(&shared.sums[s][own][channel]); };
    finish(p, row, head, channel, sink, turn, share, shares, sums_of, shared.largest);
    cluster_wait();
}

#if BULK
extern "C" __global__ void __launch_bounds__(WARPS * WARP) attend(const __grid_constant__ Attention p) { attend_block<false>(p); }
#endif
extern "C" __global__ void __launch_bounds__(WARPS * WARP, 2) attend_apart(const __grid_constant__ Attention p) { attend_block<true>(p); }

// grid: (heads / OWN, rows)
extern "C" __global__ void __launch_bounds__(WARPS * WARP) attend_join(const __grid_constant__ Attention p) {
    __shared__ float largest[WARPS];
    const int lane = threadIdx.x % WARP, row = blockIdx.y;
    const int own = threadIdx.x * CHANNELS / DIM, head = blockIdx.x * OWN + own, channel = threadIdx.x * CHANNELS % DIM;
    const size_t block = (static_cast<size_t>(row) * (p.heads / HEADS) + head / HEADS) * CLUSTER * HEADS + head % HEADS;  // of share 0
    let_next_start();
    const float sink = p.sinks[head];
    const int shares = Keys(p, __ldcg(p.positions + row)).shares;
    float2 turn[OWN] = {};
    if (channel >= DIM - ROPE) {
#pragma unroll
        for (int i = 0; i < OWN; i++) turn[i] = __ldcg(p.turns + row * (ROPE / 2) + (channel - (DIM - ROPE)) / 2 + i);
    }
    wait_for_previous();
    float2 share = {-INFINITY, 0};
    if (lane % CLUSTER < shares) share = __ldcg(p.apart_tops + block + lane % CLUSTER * HEADS);
    auto sums_of = [&](int s) { return __ldcg(reinterpret_cast<const float4*>(p.apart + (block + s * HEADS) * DIM + channel)); };
    finish(p, row, head, channel, sink, turn, share, shares, sums_of, largest);
}
