// A layer's experts for one row or two: down of the routed ones and of the shared one, weighted and summed, behind experts_up.cu.
//
// Floor, one row, q2 mix: 6 · 2.75 MB and the shared expert's 8.9 MB, 5.6 µs at 4.5 TB/s.
#include "epilogue.cuh"
#include "routing.cuh"

struct Down {
    const char* weights;         // [experts][tiles][cells] cells
    const char* shared_weights;  // [tiles][cells] cells, Q8_0; or null
    const uint2* grid;
    const Jobs* jobs;
    u32* counter;                // of `up`, to be set to zero; or null
    const u8* digits;            // [rows · count, cells, 2, 256]
    const float* scales;         // [rows · count, cells]
    const u8* shared_digits;     // [rows, cells, 2, 256]
    const float* shared_scales;
    float* out;                  // [rows, width]
    int tiles, cells, rows, width, count;  // count: experts of a row
    int stages, stage_bytes;
    const char* ahead;                     // what the kernel behind this one will read first, so that it is nearer then; or null
    int ahead_bytes;
};

constexpr int LOG_DOWN_WARPS = 3, DOWN_WARPS = 1 << LOG_DOWN_WARPS, LOG_VECTORS = 3;  // vectors of a warp on their way

// A warp's own ring of vectors: 256 columns of a row, both digits.
struct Vectors {
    char* memory;  // [size][2][256]
    u64* bars;
    int size, log;  // size: 1 << log
    int filled = 0, used = 0;

    PS_DEVICE Vectors(char* memory, u64* bars, int log, int lane) : memory(memory), bars(bars), size(1 << log), log(log) {
        if (lane == 0) {
#pragma unroll 1
            for (int i = 0; i < size; i++) barrier_init(bars + i, 1);
            barrier_init_visible();
        }
        __syncwarp();
    }
    PS_DEVICE int room() const { return size - (filled - used); }
    PS_DEVICE int at(int number) const { return number & (size - 1); }
    PS_DEVICE void fill(int i, const u8* from) {  // the i-th behind those that are filled
        u64* bar = bars + at(filled + i);
        barrier_expect(bar, 2 * CELL);
        bulk_copy(memory + at(filled + i) * 2 * CELL, from, 2 * CELL, bar);
    }
    PS_DEVICE void wait(int count) const {
#pragma unroll 1
        for (int i = used; i < used + count; i++) barrier_wait(bars + at(i), i >> log & 1);
    }
    PS_DEVICE void release(int count) {
        __syncwarp();
        used += count;
    }
};

// The next `count` of them as a cell's inputs: lane 4 g + t has digit g % 2 of row g / 2.
struct VectorInputs {
    static constexpr bool NEGATIVE = false, HELD = false;
    const char* plane;
    bool there;

    PS_DEVICE VectorInputs(const Vectors& v, int count, int lane)
        : plane(v.memory + (v.at(v.used + lane / 8) * 2 + lane / 4 % 2) * CELL + lane % 4 * 8), there(lane / 8 < count) {}
    PS_DEVICE uint2 step(int, int i) const { return there ? load8(plane + i * 32) : uint2{0, 0}; }
    PS_DEVICE uint2 negative(int, int) const { return {0, 0}; }
};

template <int FORMAT>
PS_DEVICE void down(const Down& p) {
    extern __shared__ __align__(128) char shared[];
    constexpr int WARPS = DOWN_WARPS, BYTES = cell_bytes(FORMAT), SHARED_BYTES = cell_bytes(Q8_0);
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    const int part = p.rows * 16, most_jobs = p.rows * p.count;
    const int log_slices = log_slices_for(p.cells, LOG_DOWN_WARPS), slices = 1 << log_slices, log_together = LOG_DOWN_WARPS - log_slices;
    const int slice = warp & (slices - 1), group = warp >> log_slices, together = 1 << log_together;  // group: of the warps that share a tile
    const int first = p.cells * slice >> log_slices, n = (p.cells * (slice + 1) >> log_slices) - first;
    const int most_n = (p.cells + slices - 1) >> log_slices, factors_of = (most_jobs + p.rows) * most_n;
    u64* bars = reinterpret_cast<u64*>(shared);
    Jobs& jobs = *reinterpret_cast<Jobs*>(shared + 1024);
    char* vectors_at = shared + 1024 + JOBS;
    const int vector_bytes = (2 * CELL) << LOG_VECTORS;
    float* red = reinterpret_cast<float*>(vectors_at + WARPS * vector_bytes);  // [2][warps][rows][16]
    float* all_factors = red + whole(2 * WARPS * part);
    float* factors = all_factors + warp * factors_of;
    char* grid = reinterpret_cast<char*>(all_factors + whole(WARPS * factors_of));
    char* rings = grid + (FORMAT == IQ2_XXS ? GRID_BYTES : 0);

    Ring ring(rings + warp * p.stages * p.stage_bytes, bars + warp * p.stages, p.stages, p.stage_bytes, lane);
    Vectors vectors(vectors_at + warp * vector_bytes, bars + 64 + (warp << LOG_VECTORS), LOG_VECTORS, lane);
    const int steps = (p.tiles + together - 1) >> log_together, pack = p.stage_bytes / BYTES;
    // A step's pieces: the shared expert's cells one by one, then the jobs' first cells, their second ones …, `pack` to a stage.
    const int shared_n = p.shared_weights ? n : 0;
    int pieces = shared_n, fill_step = blockIdx.x, fill_piece = 0;
    auto refill = [&](bool known) {  // known: the experts
#pragma unroll 1
        while (fill_step < steps && !ring.full()) {
            const int tile = fill_step * together + group;
            if (tile >= p.tiles || (known && fill_piece == pieces)) {
                fill_step += gridDim.x, fill_piece = 0;
                continue;
            }
            if (fill_piece == shared_n && !known) break;
            if (lane == 0) {
                if (fill_piece < shared_n) {
                    const char* from = p.shared_weights + (static_cast<size_t>(tile) * p.cells + first + fill_piece) * SHARED_BYTES;
                    stream_copy(ring.to_fill(), from, SHARED_BYTES, ring.announce(SHARED_BYTES));
                } else {
                    const int q0 = (fill_piece - shared_n) * pack, q1 = min(q0 + pack, jobs.count * n);
                    u64* bar = ring.announce((q1 - q0) * BYTES);
                    int c = q0 / jobs.count, u = q0 - c * jobs.count;
#pragma unroll 1
                    for (int q = q0; q < q1; q++) {
                        const size_t expert = jobs.job[u].expert;
                        const char* from = p.weights + ((expert * p.tiles + tile) * p.cells + first + c) * BYTES;
                        stream_copy(ring.to_fill() + (q - q0) * BYTES, from, BYTES, bar);
                        if (++u == jobs.count) u = 0, c++;
                    }
                }
            }
            ring.advance_fill();
            fill_piece++;
        }
    };
    refill(false);
    if (FORMAT == IQ2_XXS)
        for (int i = warp; i < 256 / GRID_SHARE; i += WARPS) fill_grid(grid, i, lane, p.grid[GRID_SHARE * i + lane % GRID_SHARE]);
    read_jobs(p.jobs, jobs, most_jobs);  // the kernel before this one let it start only after they were written
    pieces = shared_n + (jobs.count * n + pack - 1) / pack;
    refill(true);
    let_next_start();
    fetch_ahead(p.ahead, p.ahead_bytes);
    wait_for_previous();
    if (p.counter && blockIdx.x == 0 && threadIdx.x == 0) *p.counter = 0;

    // Vectors in the order of their use: the shared expert's, cell by cell and row by row, then the pairs', cell by cell.
    const int pairs = jobs.pairs, shared_vectors = shared_n * p.rows, of_step = shared_vectors + n * pairs;
    int own_steps = 0;  // that have work for this warp
#pragma unroll 1
    for (int step = blockIdx.x; step < steps; step += gridDim.x) own_steps += step * together + group < p.tiles;
    const int all_vectors = own_steps * of_step;
    int filled_in_step = 0;  // vectors.filled in its step
    auto ask = [&] {  // a lane a vector
        const int count = min(vectors.room(), all_vectors - vectors.filled);
        if (count == 0) return;
        if (lane < count) {
            int i = filled_in_step + lane;
#pragma unroll 1
            while (i >= of_step) i -= of_step;
            const bool own = i < shared_vectors;
            const int j = own ? i : i - shared_vectors, each = own ? p.rows : pairs, c = j / each, k = j - c * each;
            const size_t vector = own ? k : jobs.vector[k];
            vectors.fill(lane, (own ? p.shared_digits : p.digits) + (vector * p.cells + first + c) * 2 * CELL);
        }
        vectors.filled += count, filled_in_step += count;
#pragma unroll 1
        while (filled_in_step >= of_step) filled_in_step -= of_step;
    };
    ask();
    // What a vector's integers are worth: [cells][pairs], times the router's weight, behind [cells][rows] of the shared expert
    float* pair_factors = factors + p.rows * most_n;
#pragma unroll 1
    for (int i = lane; i < of_step; i += WARP) {
        const bool own = i < shared_vectors;
        const int j = own ? i : i - shared_vectors, each = own ? p.rows : pairs, c = j / each, k = j - c * each;
        const size_t vector = own ? k : jobs.vector[k];
        const float scale = __ldcg((own ? p.shared_scales : p.scales) + vector * p.cells + first + c);
        (own ? factors : pair_factors)[j] = own ? scale : scale * jobs.weight[k];
    }
    __syncwarp();

    int turn = 0;
    for (int step = blockIdx.x; step < steps; step += gridDim.x, turn++) {
        const int tile = step * together + group;
        float* sums_of = red + (turn % 2 * WARPS + warp) * part;  // [rows][16]
        if (tile < p.tiles) {
#pragma unroll 1
            for (int i = lane; i < part; i += WARP) sums_of[i] = 0;
            __syncwarp();
            // A job's `count` rows: lane 4 g + t has weight rows g and g + 8 of its row `mine`.
            auto add = [&](int count, int mine, float factor, const char* cell, auto format) {
                Sums<1> sums;
                float* at = sums_of + mine * 16 + g;
                if (t < count) sums.v[0][0] = at[0], sums.v[0][1] = at[8];
                vectors.wait(count);
                const VectorInputs source(vectors, count, lane);
                const float scale[1] = {factor};
                add_expert_cell(decltype(format)::value, cell, grid, lane, source, scale, sums);
                if (t < count) at[0] = sums.v[0][0], at[8] = sums.v[0][1];
                vectors.release(count);
                ask();
            };
#pragma unroll 1
            for (int c = 0; c < shared_n; c++) {
                const char* cell = ring.wait();
                const int mine = t < p.rows ? t : 0;
                add(p.rows, mine, t < p.rows ? factors[c * p.rows + mine] : 0.0f, cell, Constant<Q8_0>());
                ring.release();
                refill(true);
            }
            const char* stage = nullptr;
            int in_stage = 0, u = 0, before = 0;  // in_stage: cells of the stage that are used; before: pairs of the cells before
#pragma unroll 1
            for (int left = jobs.count * n; left > 0; left--) {
                if (in_stage == 0) stage = ring.wait();
                const int count = jobs.job[u].rows, mine = t < count ? jobs.job[u].row[t] : 0;
                const float factor = t < count ? pair_factors[before + jobs.job[u].first + t] : 0.0f;
                add(count, mine, factor, stage + in_stage * BYTES, Constant<FORMAT>());
                if (++u == jobs.count) u = 0, before += pairs;
                if (++in_stage == pack || left == 1) {
                    in_stage = 0;
                    ring.release();
                    refill(true);
                }
            }
        }
        if (slices > 1) named_barrier(1 + group, slices * WARP);
        else __syncwarp();
        if (slice != (turn & (slices - 1)) || tile >= p.tiles) continue;
        const float* parts = red + (turn % 2 * WARPS + warp - slice) * part;
#pragma unroll 1
        for (int i = lane; i < part; i += WARP) {
            float v = 0;
#pragma unroll 2
            for (int k = 0; k < slices; k++) v += parts[k * part + i];
            if (tile * 16 + i % 16 < p.width) p.out[static_cast<size_t>(i / 16) * p.width + tile * 16 + i % 16] = v;
        }
    }
}

#ifdef EXPERT_FORMAT  // one format at a time: compiling all takes a while
extern "C" __global__ void __launch_bounds__(DOWN_WARPS * 32, 2) experts_down(const __grid_constant__ Down p) { down<EXPERT_FORMAT>(p); }
#endif
