// The products of prefill_product.cu with the instructions that a warp has on every card.
//
// Floor: a multiprocessor of RTX 30, 40 and 50 multiplies 16 × 8 × 16 in 8 cycles, one of A100 in 2.  A warp has two tiles of 16 rows, so
// that what it reads of the inputs, 4 cycles for 16 of them by 16 columns, serves four of those products: reading takes an eighth of the
// cards' time, of A100's half.  To unpack two tiles by 32 columns takes a warp about 100 instructions; multiplying them with 128 inputs
// takes a quarter of the multiprocessor 2,048 cycles (A100: 512), so experts with few rows are bound by unpacking, all else by arithmetic.
// For 64 columns a block brings 16 KB of inputs and 4 to 32 KB of weights for 16,000 cycles of work (A100: 4,000), 2 bytes a cycle.
//
// A block has eight warps, one to a multiprocessor: 128 sums take half of the registers.  All warps fetch, 64 columns at a time: the
// inputs, and of the weights the codes of these columns; what lies behind a cell's codes comes with its first 64 columns.  While they
// multiply a stage, the next STAGES − 1 are on their way.
#pragma once

#include "mma.cuh"
#include "prefill_product.cuh"

#ifndef STAGES  // 2 … 4: as many as shared memory has room for
#define STAGES 2
#endif

static_assert(STAGES >= 2 && STAGES <= CELL / BLOCK, "of what lies behind codes there are two stages, of a cell each");
constexpr int PART = 2, WARPS = TILES / PART, THREADS = WARPS * WARP;  // tiles of a warp
constexpr int BLOCKS = CELL / BLOCK, CODES = Weights::codes / BLOCKS, BEHIND = Weights::bytes - Weights::codes;
constexpr int X_AT_ONCE = THREADS / 8, BESIDE = THREADS / TILES * 16;  // rows of inputs, and bytes of a tile, that are asked for at a time

// While one step is multiplied the next may be unpacked: as far as there are registers.
constexpr int STEPS_AT_ONCE = GATE_UP && (WEIGHT_FORMAT == IQ2_XXS || WEIGHT_FORMAT == Q4_K || WEIGHT_FORMAT == FP8) ? 1 : 2;

// Where this block's stages lie: of inputs and codes, and two of what is behind codes.
struct Stage {
    int at = 0, cell = 0;
    PS_DEVICE void advance(bool last) {
        if (++at == STAGES) at = 0;
        if (last) cell ^= 1;
    }
};

// Thread f has chunk f % 8 of rows f / 8, …; and of tile f / 16 of the weights chunk f % 16 ….
struct Fetcher {
    const Product& p;
    const u32 inputs, codes, behind;  // in shared memory, with this thread's place
    const u16* x = nullptr;
    const u8* weights = nullptr;
    u32 rows[MAX_N / X_AT_ONCE];  // where rows of the tile begin, in chunks
    int count = 0, pass = 0, block = 0;
    Stage next = {};

    PS_DEVICE Fetcher(const Product& p, char* inputs, char* codes, char* behind)
        : p(p),
          inputs(shared_address(inputs) + swizzled(threadIdx.x / 8, threadIdx.x % 8)),
          codes(shared_address(codes) + threadIdx.x / 16 * CODES + threadIdx.x % 16 * 16),
          behind(shared_address(behind) + threadIdx.x / 16 * BEHIND + threadIdx.x % 16 * 16) {}

    // The first stages of this tile
    PS_DEVICE void begin(const Tile& tile, int2 unit) {
        const Segment& segment = p.segments[unit.x];
        const int own = threadIdx.x / 16, place = GATE_UP ? unit.y * (TILES / 2) + own / 2 : unit.y * TILES + own;
        const size_t first = static_cast<size_t>(tile.matrix) * segment.tiles + min(place, segment.tiles - 1);
        weights = segment.weights + (GATE_UP ? (2 * first + own % 2) * p.cells : first * p.cells) * Weights::bytes + threadIdx.x % 16 * 16;
        x = p.x + static_cast<size_t>(tile.matrix) * p.x_matrix + threadIdx.x % 8 * 8;
        count = tile.count, pass = block = 0;
#pragma unroll
        for (int q = 0; q < MAX_N / X_AT_ONCE; q++) {
            const int item = tile.first + min(q * X_AT_ONCE + static_cast<int>(threadIdx.x) / 8, count - 1);
            rows[q] = static_cast<u32>(p.gather ? p.gather[item] : item) * static_cast<u32>(p.x_stride / 8);
        }
        for (int i = 0; i < STAGES - 1; i++) fetch();
    }
    // One more, if there is one
    PS_DEVICE void fetch() {
        if (pass < p.passes) {
            const u16* from = x + plane_of(pass) * p.plane + block * BLOCK;
#pragma unroll
            for (int q = 0; q < MAX_N / X_AT_ONCE; q++) {
                if (q * X_AT_ONCE >= count) break;
                cp_async16(inputs + next.at * X_BYTES + q * X_AT_ONCE * 128, from + static_cast<size_t>(rows[q]) * 8);
            }
            const int quarter = block % BLOCKS, own = threadIdx.x % 16 * 16;
            const u8* cell = weights + static_cast<size_t>(block / BLOCKS) * Weights::bytes;
#pragma unroll
            for (int q = 0; q < CODES; q += BESIDE) cp_async16(codes + next.at * TILES * CODES + q, cell + quarter * CODES + q);
            if (quarter == 0) {
#pragma unroll
                for (int q = 0; q < BEHIND; q += BESIDE)
                    if (q + own < BEHIND) cp_async16(behind + next.cell * TILES * BEHIND + q, cell + Weights::codes + q);
            }
            next.advance(quarter == BLOCKS - 1);
            if (++block == p.cells * BLOCKS) block = 0, pass++;
        }
        cp_async_commit();
    }
};

struct Multiplier {
    const Product& p;
    const char *inputs, *codes, *behind, *grid;
    Fetcher& fetcher;
    const Schedule& schedule;
    Stage at = {};
    int work = 0;

    // Two steps: 64 columns
    template <int N>
    PS_DEVICE void add(int quarter, int pass, float (&acc)[PART][N / 2]) {
        const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
        const u32 rows = shared_address(inputs + at.at * X_BYTES) + lane_of_rows(lane);
        // Pointers as if whole cells lay there
        const char* rest = behind + (at.cell * TILES + PART * warp) * BEHIND - Weights::codes;
        const char* cells = CODES ? codes + (at.at * TILES + PART * warp - quarter) * CODES : rest;
        const int next = CODES ? CODES : BEHIND;
#pragma unroll(STEPS_AT_ONCE)
        for (int step = 0; step < 2; step++) {
            u32 a[PART][2][4];
#pragma unroll
            for (int k = 0; k < PART; k++) {
                const int own = GATE_UP ? 0 : k;  // pairs lie beside each other, and of each a warp has both halves
                const TwoHalves from = {{cells + own * next, cells + next}, k, {rest + own * BEHIND, rest + BEHIND}};
                Weights::template step<GATE_UP>(from, grid, lane, 2 * quarter + step, pass, a[k]);
            }
#pragma unroll
            for (int s = 0; s < 2; s++)
#pragma unroll
                for (int j = 0; j < N / 8; j += 2) {
                    u32 b[4];
                    load_rows(b, rows, 2 * step + s, j * 1024);
#pragma unroll
                    for (int k = 0; k < PART; k++) mma_sixteen(acc[k], j, a[k][s], b);
                }
        }
    }

    template <int N>
    PS_DEVICE void run() {
        float acc[PART][N / 2];
#pragma unroll
        for (int i = 0; i < N / 2; i++)
#pragma unroll
            for (int k = 0; k < PART; k++) acc[k][i] = 0;
        for (int pass = 0; pass < p.passes; pass++)
#pragma unroll 1
            for (int block = 0; block < p.cells * BLOCKS; block++) {
                cp_async_wait<STAGES - 2>();
                __syncthreads();  // this stage is here, and all are done with the one before
                fetcher.fetch();
                add<N>(block % BLOCKS, pass, acc);
                at.advance(block % BLOCKS == BLOCKS - 1);
            }
        // Nobody reads the stages that are filled now.
        if (const int next = work + static_cast<int>(gridDim.x); next < schedule.count()) fetcher.begin(schedule.tile(next), schedule.unit(next));
        const Tile tile = schedule.tile(work);  // looked up again: there are no registers to keep it in
        const int2 unit = schedule.unit(work);
        ItemScales<N> scales;
        scales.load(p, tile);
#pragma unroll
        for (int k = 0; k < PART; k++) store<N>(p, tile, unit, PART * (threadIdx.x / WARP) + k, scales, acc[k]);
    }
};

// shared: inputs, the grid, codes, what lies behind codes
PS_DEVICE void multiply(const Product& p, char* shared) {
    char *inputs = shared, *grid = inputs + STAGES * X_BYTES, *codes = grid + GRID, *behind = codes + STAGES * TILES * CODES;
    let_next_start();
    if (GRID) fill_half_grid(grid, reinterpret_cast<const uint2*>(p.grid));
    wait_for_previous();
    const Schedule schedule(p);
    Fetcher fetcher(p, inputs, codes, behind);
    Multiplier multiplier = {p, inputs, codes, behind, grid, fetcher, schedule};
    int work = blockIdx.x;
    if (work < schedule.count()) fetcher.begin(schedule.tile(work), schedule.unit(work));
    for (; work < schedule.count(); work += gridDim.x) {
        multiplier.work = work;
        by_width(schedule.tile(work).count, multiplier);
    }
}
