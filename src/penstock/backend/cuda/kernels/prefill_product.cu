// Products of many rows with packed weights, on the tensor cores: dense matrices, groups of columns, routed experts.
//
// A layer of the published model has 13 GFLOP for every 512 rows beside its routed experts, and 77 GFLOP of those: at 700 TFLOP/s they
// are as long as reading 4 GB, so from a few hundred rows on arithmetic is the floor for dense products, and for experts (12 rows
// each of 512) it is reading and unpacking until about 4,096 rows.
//
// A block is two warpgroups that multiply and one that fetches inputs.  A warpgroup has 128 rows of weights (two tiles of 64: gate and
// up where they are paired) against up to 128 inputs.  Weights stream through a ring of each warp's own, as in the products of few
// rows, and are unpacked into the registers that the tensor cores read; while they multiply one step of 32 columns, the warp unpacks the
// next.  Inputs are halfs with a scale for every row, and go through shared memory 64 columns at a time.
//
// An output is one sum over the columns in their order, whatever the number of rows: how a prompt is cut into chunks does not matter.
#include "unpack.cuh"
#include "wgmma.cuh"

#ifndef WEIGHT_FORMAT
#define WEIGHT_FORMAT Q8_0
#endif

using Weights = Unpack<WEIGHT_FORMAT>;

constexpr int GROUPS = 2, WARPS = 4 * GROUPS, FETCHERS = 128, THREADS = WARPS * WARP + FETCHERS;
constexpr int BLOCK = 64, MAX_N = 128, INPUT_STAGES = 5, INPUT_BYTES = MAX_N * BLOCK * 2, LAG = 2;
constexpr int PIECE_BYTES = Weights::bytes / (CELL / Weights::columns);
constexpr int GRID = WEIGHT_FORMAT == IQ2_XXS ? HALF_GRID_BYTES : 0;

// Some items that one matrix sees: rows of inputs by way of `gather`, or directly.
struct Tile {
    int matrix, first, count;
};

// A matrix, or several of one shape one behind the other, and what comes of it.
struct Segment {
    const u8* weights;  // [matrices, tiles, cells (twice if paired), bytes]
    float* out;         // [items, stride], or null:
    u16* acts;          // [items, stride] halfs in the order of `input_place`: swiglu(gate, up) · act_up
    int tiles, rows, stride, apart;  // apart: numbers from one matrix's outputs to the next one's
};
constexpr int MAX_SEGMENTS = 8;

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
    int count, matrices, cells, paired, passes, items, each, stages;  // count: of segments
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
        const int own = (p.paired ? 4 : 8) * GROUPS;
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

struct Pipeline {
    char* memory;
    u64 *full, *empty;
    int at = 0;
    u32 parity = 0;
    PS_DEVICE void advance() {
        if (++at == INPUT_STAGES) at = 0, parity ^= 1;
    }
    PS_DEVICE char* stage() const { return memory + at * INPUT_BYTES; }
};

// Rows of the tile, 64 columns at a time, swizzled.  Fetcher f has chunk f % 8 of rows f / 8, f / 8 + 16 ….
template <int N>
PS_DEVICE void fetch(const Product& p, const Tile& tile, Pipeline& pipe, int& issued, Pipeline& done) {
    const int own = threadIdx.x % FETCHERS / 8, chunk = threadIdx.x % 8;
    int rows[N / 16];
#pragma unroll
    for (int i = 0; i < N / 16; i++) {
        const int item = tile.first + min(own + 16 * i, tile.count - 1);
        rows[i] = p.gather ? p.gather[item] : item;
    }
    const u16* x = p.x + static_cast<size_t>(tile.matrix) * p.x_matrix + chunk * 8;
    for (int pass = 0; pass < p.passes; pass++) {
        const u16* plane = x + plane_of(pass) * p.plane;
        for (int block = 0; block < p.cells * (CELL / BLOCK); block++) {
            barrier_wait(pipe.empty + pipe.at, pipe.parity ^ 1);
            const u32 to = shared_address(pipe.stage());
#pragma unroll
            for (int i = 0; i < N / 16; i++)
                cp_async16(to + swizzled(own + 16 * i, chunk), plane + static_cast<size_t>(rows[i]) * p.x_stride + block * BLOCK);
            cp_async_commit();
            pipe.advance();
            if (issued >= LAG) {  // what was asked for so many stages ago is here
                cp_async_wait<LAG>();
                fence_for_tensor_cores();
                barrier_arrive(done.full + done.at);
                done.advance();
            } else {
                issued++;
            }
        }
    }
}

// A warp's weights, piece by piece, over all the work of the block.
struct WeightStream {
    const Product& p;
    const Schedule& schedule;
    int work, pass = 0, piece = 0, group, warp;
    const u8* at[2];

    PS_DEVICE WeightStream(const Product& p, const Schedule& schedule, int group, int warp)
        : p(p), schedule(schedule), work(blockIdx.x), group(group), warp(warp) {
        if (more()) begin();
    }
    PS_DEVICE bool more() const { return work < schedule.count(); }
    PS_DEVICE void begin() {
        const int2 unit = schedule.unit(work);
        const Segment& segment = p.segments[unit.x];
        const int own = unit.y * GROUPS + group, last = segment.tiles - 1;
        const size_t cells = p.paired ? 2 * p.cells : p.cells, matrix = static_cast<size_t>(schedule.tile(work).matrix) * segment.tiles;
        const int first = p.paired ? 4 * own + warp : 8 * own + warp;
        at[0] = segment.weights + (matrix + min(first, last)) * cells * Weights::bytes;
        at[1] = p.paired ? at[0] + static_cast<size_t>(p.cells) * Weights::bytes
                         : segment.weights + (matrix + min(first + 4, last)) * cells * Weights::bytes;
    }
    // One lane
    PS_DEVICE void fill(const Ring& ring) const {
        u64* bar = ring.announce(2 * PIECE_BYTES);
#pragma unroll
        for (int m = 0; m < 2; m++)
            bulk_copy(ring.to_fill() + m * PIECE_BYTES, at[m] + static_cast<size_t>(piece) * PIECE_BYTES, PIECE_BYTES, bar);
    }
    PS_DEVICE void advance() {
        if (++piece < p.cells * (CELL / Weights::columns)) return;
        piece = 0;
        if (++pass < p.passes) return;
        pass = 0;
        work += gridDim.x;
        if (more()) begin();
    }
};

PS_DEVICE float scale_of(const Product& p, const Tile& tile, int item) {
    if (!p.scales) return p.x_scale * Weights::down;
    const size_t row = p.gather ? p.gather[item] : item;
    return p.scales[row * p.scale_stride + static_cast<size_t>(tile.matrix) * p.scale_matrix] * Weights::down;
}

template <int N>
PS_DEVICE void store(const Product& p, const Tile& tile, int2 unit, float (&acc)[2][N / 2]) {
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    const Segment& segment = p.segments[unit.x];
    const int own = unit.y * GROUPS + warp / 4;
    if (!p.paired) {
#pragma unroll
        for (int j = 0; j < N / 8; j++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const int n = 8 * j + 2 * t + e, item = tile.first + n;
                if (n >= tile.count) continue;
                const float scale = scale_of(p, tile, item) * (p.factors ? p.factors[item] : 1.0f);
                float* out = segment.out + static_cast<size_t>(item) * segment.stride + static_cast<size_t>(tile.matrix) * segment.apart;
#pragma unroll
                for (int m = 0; m < 2; m++)
#pragma unroll
                    for (int h = 0; h < 2; h++) {
                        const int feature = (8 * own + 4 * m + warp % 4) * 16 + g + 8 * h;
                        if (feature < segment.rows) out[feature] = acc[m][4 * j + 2 * h + e] * scale;
                    }
            }
        return;
    }
    // Lanes of neighbouring rows exchange numbers, so that each has four of one item: rows 2i, 2i + 1, 2i + 8, 2i + 9 of the tile.
    const int own_tile = 4 * own + warp % 4, i = g / 2;
    const int place = own_tile / 2 * STEP + i / 2 * 16 + i % 2 * 8 + own_tile % 2 * 4;
#pragma unroll
    for (int j = 0; j < N / 8; j++) {
        u32 both[2];  // of items 2t, 2t + 1: rows g and g + 8
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const float scale = scale_of(p, tile, tile.first + min(8 * j + 2 * t + e, tile.count - 1));
            float v[2];
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const float gate = fminf(acc[0][4 * j + 2 * h + e] * scale, p.limit);
                const float up = fminf(fmaxf(acc[1][4 * j + 2 * h + e] * scale, -p.limit), p.limit);
                v[h] = gate / (1.0f + expf(-gate)) * up * p.act_up;
            }
            both[e] = to_halves(v[0], v[1]);
        }
        const u32 other = __shfl_xor_sync(ALL, g % 2 ? both[0] : both[1], 4), mine = g % 2 ? both[1] : both[0];
        const u32 even = g % 2 ? other : mine, odd = g % 2 ? mine : other;
        const int n = 8 * j + 2 * t + g % 2;
        if (n < tile.count && own_tile < segment.tiles)
            *reinterpret_cast<uint2*>(segment.acts + static_cast<size_t>(tile.first + n) * segment.stride + place) =
                {permute(even, odd, 0x5410), permute(even, odd, 0x7632)};
    }
}

template <int N>
PS_DEVICE void multiply(const Product& p, const Tile& tile, int2 unit, Pipeline& pipe, Ring& ring, WeightStream& stream, const char* grid) {
    const int lane = threadIdx.x % WARP;
    float acc[2][N / 2];
    u32 a[2][2][2][4];  // [step][matrix][slice]
    int add = 0, held = -1;  // the stage before, until the tensor cores are done with it
#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
        for (int i = 0; i < N / 2; i++) acc[m][i] = 0;
    for (int pass = 0; pass < p.passes; pass++) {
        for (int piece = 0; piece < p.cells * (CELL / Weights::columns); piece++) {
            const char* cells = ring.wait();
            Weights weights[2];
            weights[0].load(cells, grid, lane, pass);
            weights[1].load(cells + PIECE_BYTES, grid, lane, pass);
#pragma unroll 1
            for (int block = 0; block < Weights::columns / BLOCK; block++) {
#pragma unroll
                for (int step = 0; step < 2; step++) {
                    wgmma_wait<1>();  // the step before the last: its registers are free
#pragma unroll
                    for (int m = 0; m < 2; m++) keep(a[step][m][0]), keep(a[step][m][1]);
                    if (step && held >= 0 && lane == 0) barrier_arrive(pipe.empty + held);
                    weights[0].step(2 * block + step, a[step][0]);
                    weights[1].step(2 * block + step, a[step][1]);
                    if (step == 0) barrier_wait(pipe.full + pipe.at, pipe.parity);
                    const u64 x = operand(pipe.stage(), 1024) + step * 4;
                    wgmma_fence();
#pragma unroll
                    for (int s = 0; s < 2; s++)
#pragma unroll
                        for (int m = 0; m < 2; m++) Wgmma<N>::registers(acc[m], a[step][m][s], x + 2 * s, s ? 1 : add);
                    wgmma_commit();
                    add = 1;
                }
                held = pipe.at, pipe.advance();
            }
            ring.release();
            if (stream.more()) {
                if (lane == 0) stream.fill(ring);
                stream.advance(), ring.advance_fill();
            }
        }
    }
    wgmma_wait<0>();
    keep(acc[0]), keep(acc[1]);
    if (lane == 0) barrier_arrive(pipe.empty + held);
    store<N>(p, tile, unit, acc);
}

// The narrowest product that takes `count` inputs.
template <class Work>
PS_DEVICE void by_width(int count, Work work) {
    if (count <= 16) work.template run<16>();
    else if (count <= 32) work.template run<32>();
    else if (count <= 48) work.template run<48>();
    else if (count <= 64) work.template run<64>();
    else if (count <= 96) work.template run<96>();
    else work.template run<128>();
}

struct Fetching {
    const Product& p;
    const Tile& tile;
    Pipeline &pipe, &done;
    int& issued;
    template <int N>
    PS_DEVICE void run() { fetch<N>(p, tile, pipe, issued, done); }
};
struct Multiplying {
    const Product& p;
    const Tile& tile;
    int2 unit;
    Pipeline& pipe;
    Ring& ring;
    WeightStream& stream;
    const char* grid;
    template <int N>
    PS_DEVICE void run() { multiply<N>(p, tile, unit, pipe, ring, stream, grid); }
};

// Shared memory: barriers 1024, inputs, the grid, rings.
extern "C" __global__ void __launch_bounds__(THREADS, 1) prefill_product(const __grid_constant__ Product p) {
    extern __shared__ __align__(1024) char shared[];
    u64* bars = reinterpret_cast<u64*>(shared);
    char *inputs = shared + 1024, *grid = inputs + INPUT_STAGES * INPUT_BYTES, *rings = grid + GRID;
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    Pipeline pipe = {inputs, bars, bars + INPUT_STAGES};
    if (threadIdx.x == 0) {
        for (int i = 0; i < INPUT_STAGES; i++) barrier_init(pipe.full + i, FETCHERS), barrier_init(pipe.empty + i, WARPS);
        barrier_init_visible();
    }
    let_next_start();
    if (GRID) fill_half_grid(grid, reinterpret_cast<const uint2*>(p.grid));
    wait_for_previous();
    __syncthreads();
    const Schedule schedule(p);
    if (warp >= WARPS) {
        fewer_registers<40>();
        Pipeline done = pipe;
        int issued = 0;
        for (int work = blockIdx.x; work < schedule.count(); work += gridDim.x) {
            const Tile tile = schedule.tile(work);
            by_width(tile.count, Fetching{p, tile, pipe, done, issued});
        }
        cp_async_wait<0>();
        fence_for_tensor_cores();
        for (; issued > 0; issued--) {
            barrier_arrive(done.full + done.at);
            done.advance();
        }
    } else {
        more_registers<232>();
        Ring ring(rings + warp * p.stages * 2 * PIECE_BYTES, bars + 2 * INPUT_STAGES + warp * p.stages, p.stages, 2 * PIECE_BYTES, lane);
        WeightStream stream(p, schedule, warp / 4, warp % 4);
        for (int i = 0; i < p.stages && stream.more(); i++) {
            if (lane == 0) stream.fill(ring);
            stream.advance(), ring.advance_fill();
        }
        for (int work = blockIdx.x; work < schedule.count(); work += gridDim.x) {
            const Tile tile = schedule.tile(work);
            by_width(tile.count, Multiplying{p, tile, schedule.unit(work), pipe, ring, stream, grid});
        }
    }
}
