// What stands between the products of many rows: inputs as halfs, routing, groups of rows by expert, and the sum of what experts say.
//
// Floors are bytes: a row of 4,096 is read once or twice and written once, 8,192 rows of it take 50 µs at 4.5 TB/s.
#include "halves.cuh"
#include "routing.cuh"

struct MakeHalves {
    const float* x;     // [rows, stride]
    const float* norm;  // [width] or null
    HalfRows out;
    int stride, width;
    float eps;
};

constexpr int CHUNKS = 8;  // of eight numbers to a thread: at most 16,384 columns

// One block a row, which stays in registers.
extern "C" __global__ void __launch_bounds__(256) make_halves(const __grid_constant__ MakeHalves p) {
    __shared__ float scratch[2 * 8];
    let_next_start();
    wait_for_previous();
    const int row = blockIdx.x;
    const float* x = p.x + static_cast<size_t>(row) * p.stride;
    const bool even = p.width % 2 == 0 && p.stride % 2 == 0;
    float v[CHUNKS][8], squares = 0, most = 0;
#pragma unroll
    for (int k = 0; k < CHUNKS; k++) {
        const int chunk = threadIdx.x + 256 * k;
        if (chunk >= p.out.columns / 8) break;
#pragma unroll
        for (int i = 0; i < 8; i += 2) {
            const int c = chunk_column(chunk, i);
            float2 own = {0, 0};
            if (c < p.width) own = even ? *reinterpret_cast<const float2*>(x + c) : float2{x[c], c + 1 < p.width ? x[c + 1] : 0.0f};
            v[k][i] = own.x, v[k][i + 1] = own.y;
            squares = fmaf(own.x, own.x, fmaf(own.y, own.y, squares));
            if (p.norm && c < p.width) v[k][i] *= p.norm[c];
            if (p.norm && c + 1 < p.width) v[k][i + 1] *= p.norm[c + 1];
            most = fmaxf(most, fmaxf(fabsf(v[k][i]), fabsf(v[k][i + 1])));
        }
    }
    const RowPower power = row_power(squares, most, p.width, p.norm, p.eps, scratch);
    if (threadIdx.x == 0) p.out.scales[row] = power.down;
#pragma unroll
    for (int k = 0; k < CHUNKS; k++) {
        const int chunk = threadIdx.x + 256 * k;
        if (chunk >= p.out.columns / 8) break;
#pragma unroll
        for (int i = 0; i < 8; i++) v[k][i] *= power.up;
        store_chunk(p.out, row, chunk, v[k]);
    }
}

struct Tile {  // as of prefill_product.cu
    int matrix, first, count;
};

struct Grouping {
    Routing routing;
    int* ids;         // [rows, count]
    float* weights;   // [rows, count]
    int* counts;      // [experts]
    int* gather;      // [rows · count]: the row of every item; items are sorted by expert, then by row
    float* factors;   // [rows · count]: its weight
    int* places;      // [rows, count]: the item of every choice
    Tile* tiles;
    int* tile_count;
    int rows, most;  // most items of a tile
};

// One warp, one row: the best `count` experts, ties to the lower id, or the table's → ids and weights [count]
PS_DEVICE void choose_row(const Routing& r, int row, int lane, int* ids, float* weights) {
    const float* logits = r.logits + static_cast<size_t>(row) * r.experts;
    auto score_of = [&](int e) { return router_score(__ldcg(logits + e)); };
    auto key = [&](int e) { return score_key(score_of(e) + (r.bias ? r.bias[e] : 0.0f)); };
    if (r.table) {
        if (lane < r.count) ids[lane] = r.table[static_cast<size_t>(r.tokens[row]) * r.count + lane];
    } else {
        u32 keys[MAX_PER_LANE];  // 0: none, or taken
#pragma unroll
        for (int j = 0; j < MAX_PER_LANE; j++) {
            const int e = lane + j * WARP;
            keys[j] = e < r.experts ? key(e) : 0;
        }
#pragma unroll 1
        for (int k = 0; k < r.count; k++) {
            u32 best[MAX_PER_LANE], own = 0;  // own: which of this lane's keys is the best one
#pragma unroll
            for (int j = 0; j < MAX_PER_LANE; j++) best[j] = keys[j];
#pragma unroll
            for (int d = 1; d < MAX_PER_LANE; d *= 2)
#pragma unroll
                for (int j = 0; j + d < MAX_PER_LANE; j += 2 * d) best[j] = max(best[j], best[j + d]);
            const u32 top = __reduce_max_sync(ALL, best[0]);
#pragma unroll
            for (int j = 0; j < MAX_PER_LANE; j++) own |= keys[j] == top ? 1u << j : 0;
            const u32 place = __ffs(own) - 1, id = own ? lane + place * WARP : 0xffffffffu;
            u32 lanes = __ballot_sync(ALL, own);
            if (lanes & (lanes - 1)) lanes = __ballot_sync(ALL, id == __reduce_min_sync(ALL, id));
            if (lanes >> lane & 1) {
                ids[k] = static_cast<int>(id);
#pragma unroll
                for (int j = 0; j < MAX_PER_LANE; j++) keys[j] = j == place ? 0u : keys[j];
            }
        }
    }
    __syncwarp();
    float scores[MAX_COUNT], sum = 1e-20f;
#pragma unroll
    for (int k = 0; k < MAX_COUNT; k++) scores[k] = k < r.count ? score_of(ids[k]) : 0.0f;
#pragma unroll
    for (int k = 0; k < MAX_COUNT; k++) sum += scores[k];
    if (lane < r.count) weights[lane] = (r.normalize ? __fdiv_rn(score_of(ids[lane]), sum) : score_of(ids[lane])) * r.scale;
}

// A warp a row
extern "C" __global__ void __launch_bounds__(256) route_rows(const __grid_constant__ Grouping p) {
    let_next_start();
    wait_for_previous();
    const int row = (blockIdx.x * blockDim.x + threadIdx.x) / WARP, at = row * p.routing.count;
    if (row < p.rows) choose_row(p.routing, row, threadIdx.x % WARP, p.ids + at, p.weights + at);
}

constexpr int GROUPING_THREADS = 1024;

PS_DEVICE int block_total(int v, int* scratch) {
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    v = __reduce_add_sync(ALL, v);
    __syncthreads();
    if (lane == 0) scratch[warp] = v;
    __syncthreads();
    return __reduce_add_sync(ALL, scratch[lane]);
}

// A block an expert: how many chose it
extern "C" __global__ void __launch_bounds__(GROUPING_THREADS) count_experts(const __grid_constant__ Grouping p) {
    __shared__ int scratch[WARP];
    let_next_start();
    wait_for_previous();
    const int total = p.rows * p.routing.count;
    int own = 0;
    for (int i = threadIdx.x; i < total; i += GROUPING_THREADS) own += p.ids[i] == static_cast<int>(blockIdx.x);
    own = block_total(own, scratch);
    if (threadIdx.x == 0) p.counts[blockIdx.x] = own;
}

// A block an expert: its items in the order of rows, and its tiles, as even as can be
extern "C" __global__ void __launch_bounds__(GROUPING_THREADS) group_rows(const __grid_constant__ Grouping p) {
    __shared__ int scratch[WARP];
    let_next_start();
    wait_for_previous();
    const int expert = blockIdx.x, count = p.routing.count, total = p.rows * count, lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    auto tiles_of = [&](int items) { return (items + p.most - 1) / p.most; };
    int before = 0, tiles_before = 0;
    for (int e = threadIdx.x; e < expert; e += GROUPING_THREADS) before += p.counts[e], tiles_before += tiles_of(p.counts[e]);
    before = block_total(before, scratch), tiles_before = block_total(tiles_before, scratch);
    const int items = p.counts[expert], tiles = tiles_of(items), each = tiles ? (items + tiles - 1) / tiles : 0;
    for (int k = threadIdx.x; k < tiles; k += GROUPING_THREADS)
        p.tiles[tiles_before + k] = {expert, before + k * each, min(each, items - k * each)};
    if (expert == p.routing.experts - 1 && threadIdx.x == 0) *p.tile_count = tiles_before + tiles;
    // Every warp has a stretch of neighbours, 32 at a time.
    const int stretch = (total + GROUPING_THREADS - 1) / GROUPING_THREADS * WARP, first = warp * stretch, end = min(first + stretch, total);
    auto is_own = [&](int i) { return i < end && p.ids[i] == expert; };
    int own = 0;
#pragma unroll 8
    for (int i = first; i < end; i += WARP) own += __popc(__ballot_sync(ALL, is_own(i + lane)));
    __syncthreads();  // all have read the totals
    if (lane == 0) scratch[warp] = own;
    __syncthreads();
    int at = before;
    for (int w = 0; w < warp; w++) at += scratch[w];
#pragma unroll 4
    for (int i = first; i < end; i += WARP) {
        const bool mine = is_own(i + lane);
        const u32 who = __ballot_sync(ALL, mine);
        if (mine) {
            const int to = at + __popc(who & ((1u << lane) - 1)), item = i + lane;
            p.gather[to] = item / count, p.factors[to] = p.weights[item], p.places[item] = to;
        }
        at += __popc(who);
    }
}

PS_DEVICE float4 operator+(const float4& a, const float4& b) { return {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w}; }

struct Combine {
    const float* terms;   // [items, width]
    const float* shared;  // [rows, width] or null
    const int* places;    // [rows, count]
    float* out;           // [rows, width]
    int count, width;
};

// One block a row: its experts' outputs by rising id, then the shared one's
extern "C" __global__ void __launch_bounds__(256) combine_rows(const __grid_constant__ Combine p) {
    __shared__ int places[MAX_COUNT];
    let_next_start();
    wait_for_previous();
    const int row = blockIdx.x;
    if (static_cast<int>(threadIdx.x) < p.count) {
        const int own = p.places[row * p.count + threadIdx.x];
        int rank = 0;
        for (int k = 0; k < p.count; k++) rank += p.places[row * p.count + k] < own;
        places[rank] = own;
    }
    __syncthreads();
    auto sum_of = [&](auto* out, int step) {  // numbers of `out`'s type, `step` to a row
        using Numbers = decltype(*out + *out);
        for (int c = threadIdx.x; c < step; c += blockDim.x) {
            auto part = [&](const float* from, size_t at) { return reinterpret_cast<const Numbers*>(from)[at * step + c]; };
            Numbers sum = part(p.terms, places[0]);
            for (int k = 1; k < p.count; k++) sum = sum + part(p.terms, places[k]);
            out[static_cast<size_t>(row) * step + c] = p.shared ? sum + part(p.shared, row) : sum;
        }
    };
    if (p.width % 4 == 0) sum_of(reinterpret_cast<float4*>(p.out), p.width / 4);
    else sum_of(p.out, p.width);
}
