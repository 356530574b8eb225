// The products of prefill_product.cu with Hopper's instructions.
//
// A block is four warpgroups that multiply, and one that fetches for them.  A warp unpacks its 16 rows into the registers that the
// tensor cores read; while they multiply one step of 32 columns, it unpacks the next.  Four warpgroups, because one waits until the
// tensor cores have taken what it gives them: the others unpack meanwhile.
#pragma once

#include "prefill_product.cuh"
#include "wgmma.cuh"

constexpr int WARPS = 16, X_FETCHERS = 64, THREADS = WARPS * WARP + 128, X_STAGES = 5, LAG = 2;
constexpr int PIECE_BYTES = Weights::bytes / (CELL / Weights::columns), STAGE_BYTES = TILES * PIECE_BYTES;

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
        store<N>(p, tile, unit, warp, scales, acc);
    }
};

// shared: barriers 512, the inputs' table 512, inputs, the grid, weights
PS_DEVICE void multiply(const Product& p, char* shared) {
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
            by_width(tile.count, multiplier, tile, schedule.unit(work));
        }
    }
}
