// Products of many rows with packed weights, on the tensor cores: dense matrices, groups of columns, routed experts.
//
// A layer of the published model has 13 GFLOP for every 512 rows beside its routed experts, and 77 GFLOP of those: at 700 TFLOP/s they
// are as long as reading 4 GB, so from a few hundred rows on arithmetic is the floor for dense products, and for experts (12 rows
// each of 512) it is reading and unpacking until about 4,096 rows.
//
// A block is four warpgroups that multiply 256 rows of weights (or 128 of gate and the same 128 of up) with up to 128 inputs, and one that
// fetches both.  A warp unpacks its 16 rows into the registers that the tensor cores read; while they multiply one step of 32 columns, it
// unpacks the next.  Four warpgroups, because one waits until the tensor cores have taken what it gives them: the others unpack
// meanwhile.  Inputs are halfs with a scale for every row, and go through shared memory 64 columns at a time.
//
// An output is one sum over the columns in their order, whatever the number of rows: how a prompt is cut into chunks does not matter.
#include "unpack.cuh"
#include "wgmma.cuh"

#ifndef WEIGHT_FORMAT
#define WEIGHT_FORMAT Q8_0
#endif
#ifndef GATE_UP  // gate and up tile by tile, and the activation behind them
#define GATE_UP 0
#endif

using Weights = Unpack<WEIGHT_FORMAT>;

constexpr int WARPS = 16, TILES = 16, X_FETCHERS = 64, THREADS = WARPS * WARP + 128;
constexpr int BLOCK = 64, MAX_N = 128, X_STAGES = 5, X_BYTES = MAX_N * BLOCK * 2, LAG = 2;
constexpr int PIECE_BYTES = Weights::bytes / (CELL / Weights::columns), STAGE_BYTES = TILES * PIECE_BYTES;
constexpr int GRID = WEIGHT_FORMAT == IQ2_XXS ? HALF_GRID_BYTES : 0;

// Some items that one matrix sees: rows of inputs by way of `gather`, or directly.
struct Tile {
    int matrix, first, count;
};

// A matrix, or several of one shape one behind the other, and what comes of it.
struct Segment {
    const u8* weights;  // [matrices, tiles, cells (twice if paired), bytes]
    float* out;         // [items, stride], or null:
    u16* halves;        // [items, stride] the same as halfs, without the row's scale and divided by HALF_SCALE; or null:
    u16* acts;          // [items, stride] halfs in the order of `input_place`: swiglu(gate, up) · act_up
    int tiles, rows, stride, apart;  // apart: numbers from one matrix's outputs to the next one's
};
constexpr int MAX_SEGMENTS = 8;
constexpr float HALF_SCALE = 32;

struct Product {
    Segment segments[MAX_SEGMENTS];
    const u16* x;         // [planes, rows, x_stride] halfs, columns in the order of `input_place`
    const float* scales;  // of row r for matrix m at r · scale_stride + m · scale_matrix, or null: x_scale for all
    const int* gather;    // [items] or null
    const Tile* tiles;    // or null: every matrix sees all `items`, `each` at a time
    const int* tile_count;
    const float* factors;  // [items] or null: what results are multiplied with
    const u8* grid;        // of IQ2_XXS
    long long plane;       // halfs from a plane of x to the next
    int x_stride, x_matrix;      // halfs from a row to the next, and from one matrix's columns to the next one's
    int scale_stride, scale_matrix;
    int count, matrices, cells, passes, items, each, stages;  // count: of segments
    float x_scale, limit, act_up;
};

// Inputs of a pass: floats have two planes of weights and of inputs, of which three products count.
PS_DEVICE int plane_of(int pass) { return WEIGHT_FORMAT == F32 ? pass >> 1 : pass; }

// What a block does: tile by tile of inputs, and for each all rows of all segments.
struct Schedule {
    const Product& p;
    int units = 0, tiles;  // blocks' shares of the weights' rows; tiles of inputs
    PS_DEVICE Schedule(const Product& p) : p(p) {
        for (int s = 0; s < p.count; s++) units += units_of(s);
        tiles = p.tiles ? *p.tile_count : p.matrices * ((p.items + p.each - 1) / p.each);
    }
    PS_DEVICE int units_of(int segment) const {
        const int own = GATE_UP ? TILES / 2 : TILES;
        return (p.segments[segment].tiles + own - 1) / own;
    }
    PS_DEVICE int count() const { return units * tiles; }
    PS_DEVICE Tile tile(int work) const {
        const int index = work / units;
        if (p.tiles) return p.tiles[index];
        const int chunks = (p.items + p.each - 1) / p.each, first = index % chunks * p.each;
        return {index / chunks, first, min(p.each, p.items - first)};
    }
    // Which segment, and which of its shares
    PS_DEVICE int2 unit(int work) const {
        int2 found = {0, work % units};
        for (; found.y >= units_of(found.x); found.x++) found.y -= units_of(found.x);
        return found;
    }
};

// Stages of shared memory, filled by some warps and emptied by others.
struct Stages {
    u64 *full, *empty;
    int count, at = 0;
    u32 parity = 0;
    PS_DEVICE void advance() {
        if (++at == count) at = 0, parity ^= 1;
    }
    PS_DEVICE void wait_full() const { barrier_wait(full + at, parity); }
    PS_DEVICE void wait_empty() const { barrier_wait(empty + at, parity ^ 1); }
};

// Rows of the inputs, 64 columns at a time, swizzled.  Thread f has chunk f % 8 of rows f / 8, f / 8 + 8 …; where rows begin is looked up
// once for a tile.
struct InputFetcher {
    const Product& p;
    char* memory;
    u32* table;  // [8][16]: of row 8 i + k at [k][i], in chunks of 16 bytes
    Stages next, done;
    int issued = 0;

    PS_DEVICE void run(const Tile& tile) {
        const int own = threadIdx.x % X_FETCHERS, k = own / 8, chunk = own % 8;
        named_barrier(1, X_FETCHERS);  // nobody reads the table of the tile before
#pragma unroll
        for (int n = own; n < MAX_N; n += X_FETCHERS) {
            const int item = tile.first + min(n, tile.count - 1), row = p.gather ? p.gather[item] : item;
            table[n % 8 * 16 + n / 8] = static_cast<u32>(row) * static_cast<u32>(p.x_stride / 8);
        }
        named_barrier(1, X_FETCHERS);
        const u16* x = p.x + static_cast<size_t>(tile.matrix) * p.x_matrix + chunk * 8;
        const u32 place = swizzled(k, chunk);
        for (int pass = 0; pass < p.passes; pass++) {
            const u16* at = x + plane_of(pass) * p.plane;
            for (int block = 0; block < p.cells * (CELL / BLOCK); block++, at += BLOCK) {
                next.wait_empty();
                const u32 to = shared_address(memory + next.at * X_BYTES) + place;
#pragma unroll
                for (int q = 0; q < MAX_N / 32; q++) {
                    if (32 * q >= tile.count) break;
                    const uint4 rows = load16(table + k * 16 + 4 * q);
                    cp_async16(to + (4 * q) * 1024, at + static_cast<size_t>(rows.x) * 8);
                    cp_async16(to + (4 * q + 1) * 1024, at + static_cast<size_t>(rows.y) * 8);
                    cp_async16(to + (4 * q + 2) * 1024, at + static_cast<size_t>(rows.z) * 8);
                    cp_async16(to + (4 * q + 3) * 1024, at + static_cast<size_t>(rows.w) * 8);
                }
                cp_async_commit();
                next.advance();
                if (issued < LAG) {
                    issued++;
                    continue;
                }
                cp_async_wait<LAG>();  // what was asked for so many stages ago is here
                arrive();
            }
        }
    }
    PS_DEVICE void arrive() {
        fence_for_tensor_cores();
        barrier_arrive(done.full + done.at);
        done.advance();
    }
    PS_DEVICE void finish() {
        cp_async_wait<0>();
        for (; issued > 0; issued--) arrive();
    }
};

// One warp: lane l has tile l of the block's sixteen; of paired ones tile l / 2 of gate or up.
PS_DEVICE void fetch_weights(const Product& p, const Schedule& schedule, char* memory, Stages stages, int lane) {
    for (int work = blockIdx.x; work < schedule.count(); work += gridDim.x) {
        const int2 unit = schedule.unit(work);
        const Segment& segment = p.segments[unit.x];
        const int tile = GATE_UP ? unit.y * (TILES / 2) + lane / 2 : unit.y * TILES + lane;
        const size_t first = static_cast<size_t>(schedule.tile(work).matrix) * segment.tiles + min(tile, segment.tiles - 1);
        const u8* from = segment.weights + (GATE_UP ? (2 * first + lane % 2) * p.cells : first * p.cells) * Weights::bytes;
        for (int pass = 0; pass < p.passes; pass++)
            for (int piece = 0; piece < p.cells * (CELL / Weights::columns); piece++) {
                stages.wait_empty();
                if (lane == 0) barrier_expect(stages.full + stages.at, STAGE_BYTES);
                __syncwarp();
                if (lane < TILES)
                    bulk_copy(memory + stages.at * STAGE_BYTES + lane * PIECE_BYTES, from + static_cast<size_t>(piece) * PIECE_BYTES,
                              PIECE_BYTES, stages.full + stages.at);
                stages.advance();
            }
    }
}

// What the results of the tile's items are to be multiplied with: lane l has items l, l + 32 ….
template <int N>
struct ItemScales {
    float v[(N + WARP - 1) / WARP];
    PS_DEVICE void load(const Product& p, const Tile& tile) {
#pragma unroll
        for (int i = 0; i < (N + WARP - 1) / WARP; i++) {
            const int item = tile.first + min(static_cast<int>(threadIdx.x) % WARP + WARP * i, tile.count - 1);
            const size_t row = p.gather ? p.gather[item] : item;
            v[i] = Weights::down * (p.factors ? p.factors[item] : 1.0f) *
                   (p.scales ? p.scales[row * p.scale_stride + static_cast<size_t>(tile.matrix) * p.scale_matrix] : p.x_scale);
        }
    }
    // Of item 8 j + 2 t + e
    PS_DEVICE float of(int j, int t, int e) const { return __shfl_sync(ALL, v[j / 4], j % 4 * 8 + 2 * t + e); }
};

template <int N>
PS_DEVICE void store(const Product& p, const Tile& tile, int2 unit, const ItemScales<N>& scales, const float (&acc)[N / 2]) {
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    const Segment& segment = p.segments[unit.x];
    if (!GATE_UP) {
        const int feature = (unit.y * TILES + warp) * 16 + g;
        float* out = segment.out + static_cast<size_t>(tile.first + 2 * t) * segment.stride + static_cast<size_t>(tile.matrix) * segment.apart + feature;
        const bool rows[2] = {feature < segment.rows, feature + 8 < segment.rows};
        if (segment.halves) {  // lanes of neighbouring rows exchange numbers, so that each has two of one item
            u16* halves = segment.halves + static_cast<size_t>(tile.first + 2 * t + g % 2) * segment.stride +
                          static_cast<size_t>(tile.matrix) * segment.apart + (feature & ~1);
#pragma unroll
            for (int j = 0; j < N / 8; j++)
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    const float a = acc[4 * j + 2 * h] * (Weights::down / HALF_SCALE), b = acc[4 * j + 2 * h + 1] * (Weights::down / HALF_SCALE);
                    const float other = __shfl_xor_sync(ALL, g % 2 ? a : b, 4);
                    if (8 * j + 2 * t + g % 2 < tile.count && rows[h])  // rows are whole tiles, or an even number
                        *reinterpret_cast<u32*>(halves + static_cast<size_t>(8 * j) * segment.stride + 8 * h) =
                            g % 2 ? to_halves(other, b) : to_halves(a, other);
                }
            return;
        }
#pragma unroll
        for (int j = 0; j < N / 8; j++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const float scale = scales.of(j, t, e);
                if (8 * j + 2 * t + e >= tile.count) continue;
                float* to = out + static_cast<size_t>(8 * j + e) * segment.stride;
                if (rows[0]) to[0] = acc[4 * j + e] * scale;
                if (rows[1]) to[8] = acc[4 * j + 2 + e] * scale;
            }
        return;
    }
    // Row g is a gate and row g + 8 its up.  Lanes of neighbouring rows exchange numbers, so that each has two of one item.
    const int own = unit.y * (TILES / 2) + warp / 2, column = own % 2 * 16 + warp % 2 * 8 + g / 2 * 2;
    u16* out = segment.acts + static_cast<size_t>(tile.first + 2 * t + g % 2) * segment.stride + own / 2 * STEP + input_place(column);
#pragma unroll
    for (int j = 0; j < N / 8; j++) {
        float v[2];  // of items 2t, 2t + 1
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const float scale = scales.of(j, t, e), gate = fminf(acc[4 * j + e] * scale, p.limit);
            const float up = fminf(fmaxf(acc[4 * j + 2 + e] * scale, -p.limit), p.limit);
            v[e] = __fdividef(gate, 1.0f + __expf(-gate)) * up * p.act_up;
        }
        const float other = __shfl_xor_sync(ALL, g % 2 ? v[0] : v[1], 4);
        if (8 * j + 2 * t + g % 2 < tile.count && own < segment.tiles)
            *reinterpret_cast<u32*>(out + static_cast<size_t>(8 * j) * segment.stride) = g % 2 ? to_halves(other, v[1]) : to_halves(v[0], other);
    }
}

struct Multiplier {
    const Product& p;
    const char *inputs, *rings, *grid;
    Stages x, w;

    template <int N>
    PS_DEVICE void run(const Tile& tile, int2 unit) {
        const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
        float acc[N / 2];
        u32 a[2][2][4];          // [step][slice]
        int add = 0, held = -1;  // the stage before, until the tensor cores are done with it
#pragma unroll
        for (int i = 0; i < N / 2; i++) acc[i] = 0;
        for (int pass = 0; pass < p.passes; pass++) {
#pragma unroll 1
            for (int piece = 0; piece < p.cells * (CELL / Weights::columns); piece++) {
                w.wait_full();
                const char* cells = rings + w.at * STAGE_BYTES + (GATE_UP ? warp / 2 * 2 : warp) * PIECE_BYTES;
                const TwoHalves from = {{cells, cells + PIECE_BYTES}, warp % 2};
#pragma unroll 1
                for (int block = 0; block < Weights::columns / BLOCK; block++) {
#pragma unroll
                    for (int step = 0; step < 2; step++) {
                        wgmma_wait<1>();  // the step before the last: its registers are free
                        keep(a[step][0]), keep(a[step][1]);
                        if (step && held >= 0 && lane == 0) barrier_arrive(x.empty + held);
                        Weights::template step<GATE_UP>(from, grid, lane, 2 * block + step, pass, a[step]);
                        if (step == 0) x.wait_full();
                        const u64 b = operand(inputs + x.at * X_BYTES, 1024) + step * 4;
                        wgmma_fence();
#pragma unroll
                        for (int s = 0; s < 2; s++) Wgmma<N>::registers(acc, a[step][s], b + 2 * s, s ? 1 : add);
                        wgmma_commit();
                        add = 1;
                    }
                    held = x.at, x.advance();
                }
                __syncwarp();  // all lanes have read their codes
                if (lane == 0) barrier_arrive(w.empty + w.at);
                w.advance();
            }
        }
        ItemScales<N> scales;  // on their way while the last products are made
        scales.load(p, tile);
        wgmma_wait<0>();
        keep(acc);
        if (lane == 0) barrier_arrive(x.empty + held);
        store<N>(p, tile, unit, scales, acc);
    }
};

// The narrowest product that takes all inputs of the tile.
PS_DEVICE void by_width(Multiplier& work, const Tile& tile, int2 unit) {
    if (tile.count <= 16) work.run<16>(tile, unit);
    else if (tile.count <= 32) work.run<32>(tile, unit);
    else if (tile.count <= 48) work.run<48>(tile, unit);
    else if (tile.count <= 64) work.run<64>(tile, unit);
    else if (tile.count <= 80) work.run<80>(tile, unit);
    else if (tile.count <= 96) work.run<96>(tile, unit);
    else if (tile.count <= 112) work.run<112>(tile, unit);
    else work.run<128>(tile, unit);
}

// Shared memory: barriers 512, the inputs' table 512, inputs, the grid, weights.
extern "C" __global__ void __launch_bounds__(THREADS, 1) prefill_product(const __grid_constant__ Product p) {
    extern __shared__ __align__(1024) char shared[];
    u64* bars = reinterpret_cast<u64*>(shared);
    char *inputs = shared + 1024, *grid = inputs + X_STAGES * X_BYTES, *rings = grid + GRID;
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const Stages x = {bars, bars + X_STAGES, X_STAGES}, w = {bars + 2 * X_STAGES, bars + 2 * X_STAGES + p.stages, p.stages};
    if (threadIdx.x == 0) {
        for (int i = 0; i < X_STAGES; i++) barrier_init(x.full + i, X_FETCHERS), barrier_init(x.empty + i, WARPS);
        for (int i = 0; i < p.stages; i++) barrier_init(w.full + i, 1), barrier_init(w.empty + i, WARPS);
        barrier_init_visible();
    }
    let_next_start();
    if (GRID) fill_half_grid(grid, reinterpret_cast<const uint2*>(p.grid));
    wait_for_previous();
    __syncthreads();
    const Schedule schedule(p);
    if (warp >= WARPS) {
        fewer_registers<32>();
        if (warp < WARPS + X_FETCHERS / WARP) {
            InputFetcher fetcher = {p, inputs, reinterpret_cast<u32*>(shared + 512), x, x};
            for (int work = blockIdx.x; work < schedule.count(); work += gridDim.x) fetcher.run(schedule.tile(work));
            fetcher.finish();
        } else if (warp == WARPS + X_FETCHERS / WARP) {
            fetch_weights(p, schedule, rings, w, lane);
        }
    } else {
        more_registers<112>();
        Multiplier multiplier = {p, inputs, rings, grid, x, w};
        for (int work = blockIdx.x; work < schedule.count(); work += gridDim.x) {
            const Tile tile = schedule.tile(work);
            by_width(multiplier, tile, schedule.unit(work));
        }
    }
}
