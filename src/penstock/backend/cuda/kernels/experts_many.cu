// A layer's experts for 3 to 32 rows, in five launches: who sees which rows; gate and up; activations; down; sums.
//
// An expert has few of the rows (of 8 rows, 46 experts have one each; of 32, 137 have 1.4), so its weights are unpacked for one row or two,
// and unpacking is what costs: IQ2_XXS takes 29 instructions for 512 weights, Q2_K 18, of those that four schedulers can issue while memory
// delivers them 26 and 32.  A warp therefore does nothing else.  It keeps the inputs of a job's 256 columns in registers while the weights of
// many tiles pass by, and writes what 256 columns make of 16 rows of weights.  Nobody meets anybody: the kernels behind add up, in the order
// in which experts.cu does, so that a row has the same bits.
#define ROUTED_ROWS 32
#include "epilogue.cuh"
#include "routing.cuh"

constexpr int PIECES = 32;  // of the rows, that inputs come in
constexpr int JOBS = (sizeof(Jobs) + 127) / 128 * 128;

// ── who sees which rows ──────────────────────────────────────────────────────────────────────────────────────────────

struct Route {
    Routing routing;    // of all rows
    const int* places;  // [experts], where an expert lies among the weights, −1 for those that somebody else computes; or null
    Chosen* chosen;
    Jobs* jobs;
    int* pairs;    // [rows · count]: the pair of a row and a place in its choice, or −1
    u32* counter;  // rows that are done; ends at zero
    int rows;
};

// A block a row; the last one makes the jobs.
extern "C" __global__ void __launch_bounds__(MAX_EXPERTS) experts_route(const __grid_constant__ Route p) {
    __shared__ __align__(16) Choice choice;
    __shared__ __align__(16) float scratch[2 * MAX_EXPERTS];
    __shared__ bool last;
    const int row = blockIdx.x, i = threadIdx.x, count = p.routing.count;
    Routing own = p.routing;
    own.logits += row * own.experts;
    own.tokens += row;
    wait_for_previous();
    let_next_start();  // only now: the next kernel reads what is older than this one
    choose_experts(own, 1, choice, scratch);
    __syncthreads();
    if (i < count) p.chosen->ids[row][i] = choice.chosen.ids[0][i], p.chosen->weights[row][i] = choice.chosen.weights[0][i];
    __syncthreads();
    if (i == 0) last = count_up(p.counter) == gridDim.x - 1;
    __syncthreads();
    if (!last) return;
    if (i == 0) *p.counter = 0;
    choice.rows_of[i] = 0;
    __syncthreads();
    if (const int of = i / MAX_COUNT, k = i % MAX_COUNT; of < p.rows && k < count) {
        const int id = __ldcg(&p.chosen->ids[of][k]);
        choice.chosen.ids[of][k] = id, choice.chosen.weights[of][k] = __ldcg(&p.chosen->weights[of][k]);
        atomicOr(&choice.rows_of[min(static_cast<u32>(id), MAX_EXPERTS - 1u)], 1u << of);
    }
    __syncthreads();
    make_jobs(p.routing, choice);
    if (p.places) keep_present(choice.jobs, p.places);
    if (i < p.rows * count) p.pairs[i] = -1;
    write_jobs(choice.jobs, p.jobs);  // with a barrier
    if (i < choice.jobs.pairs) p.pairs[choice.jobs.vector[i]] = i;
}

// ── products ─────────────────────────────────────────────────────────────────────────────────────────────────────────

struct Pass {
    const char* weights;         // [experts][tiles][cells] cells
    const uint2* grid;           // IQ2_XXS: [256]
    const Jobs* jobs;
    const u8* digits[PIECES];    // of rows 0 …, 1 << log_piece …; or, at the first, of vectors
    float* parts;                // [cells][room][16 · tiles]: what a cell's integers come to, by pairs
    int tiles, cells, room;
    int of_vectors, log_piece;           // whether inputs belong to a row and an expert, or to a row
    int row_bytes, cell_bytes, plane_bytes;  // how far digits lie apart
};

// A job's inputs in 256 columns: lane 4 g + t has digit g % 2 of row g / 2.  A lane whose row does not exist has another's (formats.cuh).
template <int FORMAT>
struct HeldInputs {
    static constexpr bool NEGATIVE = FORMAT == IQ2_XXS || FORMAT == MXFP4, HELD = true;
    uint2 x[STEPS], negated[NEGATIVE ? STEPS : 1];
    uint2 sums;  // Q2_K: of sixteen columns, 128 · x + y: of steps 4 (t % 2) …, columns 16 (t / 2) …, a byte each

    PS_DEVICE void load(const u8* plane, int lane) {
#pragma unroll
        for (int i = 0; i < STEPS; i++) x[i] = __ldcg(reinterpret_cast<const uint2*>(plane + i * 32));
        if constexpr (NEGATIVE)
#pragma unroll
            for (int i = 0; i < STEPS; i++)  // hidden: else they are made anew for every tile
                negated[i] = {hidden(negate_bytes(x[i].x)), hidden(negate_bytes(x[i].y))};
        if constexpr (FORMAT == Q2_K) {
            sums = {0, 0};
#pragma unroll
            for (int i = 0; i < STEPS; i++) {
                int sum = __dp4a(static_cast<int>(x[i].x), 0x01010101, __dp4a(static_cast<int>(x[i].y), 0x01010101, 0));
                sum += __shfl_xor_sync(ALL, sum, 1);
                const int at = i % 4 * 8;
                if (lane % 2 == i / 4) sums.x |= (sum >> 7 & 255) << at, sums.y |= (sum & 127) << at;
            }
        }
    }
    PS_DEVICE uint2 step(int, int i) const { return x[i]; }
    PS_DEVICE uint2 negative(int, int i) const { return negated[NEGATIVE ? i : 0]; }
};

// A warp's share of a pass, in two halves: `Stream` asks for weights, as far ahead as its ring allows; `pass` multiplies.  Warps whose cells lie
// side by side share a ring: a copy of a cell alone is too small to be fast.
template <int FORMAT>
struct Stream {
    static constexpr int BYTES = cell_bytes(FORMAT);
    const Pass& p;
    const Jobs& jobs;  // in shared memory
    Ring& ring;        // stages [pack][sharers] cells
    int lane, sharers, own, cell, begin, end, pack;
    int fill_at, fill_job, fill_tile;  // what is to be asked for next

    PS_DEVICE Stream(const Pass& p, const Jobs& jobs, Ring& ring, int sharers, int lane)
        : p(p), jobs(jobs), ring(ring), lane(lane), sharers(sharers) {
        const int warps = blockDim.x / WARP, across = p.cells / sharers, warp = threadIdx.x / WARP;
        const int number = (blockIdx.x * warps + warp) / sharers, range = number / across, ranges = gridDim.x * warps / sharers / across;
        const int total = jobs.count * p.tiles, each = total / ranges, more = total - each * ranges;
        own = warp % sharers, cell = (number - range * across) * sharers + own, pack = ring.stage_bytes / (sharers * BYTES);
        begin = each * range + min(range, more), end = range < ranges ? begin + each + (range < more) : begin;
        fill_at = begin, fill_job = begin / p.tiles, fill_tile = begin - fill_job * p.tiles;
#pragma unroll 1
        for (int i = 0; i < ring.stages; i++) refill();
    }
    PS_DEVICE void refill() {
        const int n = min(min(pack, p.tiles - fill_tile), end - fill_at), bytes = sharers * BYTES;  // n: tiles, of one job
        if (n <= 0) return;
        if (own == 0 && lane == 0) {
            const char* from = p.weights + ((static_cast<size_t>(jobs.job[fill_job].expert) * p.tiles + fill_tile) * p.cells + cell) * BYTES;
            u64* bar = ring.announce(n * bytes);
#pragma unroll 1
            for (int k = 0; k < n; k++, from += static_cast<size_t>(p.cells) * BYTES) stream_copy(ring.to_fill() + k * bytes, from, bytes, bar);
        }
        ring.advance_fill();
        fill_at += n, fill_tile += n;
        if (fill_tile == p.tiles) fill_tile = 0, fill_job++;
    }
    PS_DEVICE void release() {
        if (sharers > 1) named_barrier(1 + threadIdx.x / (sharers * WARP), sharers * WARP);
        ring.release();
        refill();
    }
};

template <int FORMAT>
PS_DEVICE void pass(Stream<FORMAT>& stream, const char* grid) {
    const Pass& p = stream.p;
    const Jobs& jobs = stream.jobs;
    const int lane = stream.lane, cell = stream.cell, g = lane / 4, t = lane % 4;
#pragma unroll 1
    for (int at = stream.begin; at < stream.end;) {
        const int u = at / p.tiles, first_tile = at - u * p.tiles, tiles = min(p.tiles - first_tile, stream.end - at);
        const Job& job = jobs.job[u];
        const int rows = job.rows, first = job.first, slot = g / 2 < rows ? g / 2 : 0;
        const int row = p.of_vectors ? jobs.vector[first + slot] : job.row[slot];
        const u8* digits = p.of_vectors ? p.digits[0] + static_cast<size_t>(row) * p.row_bytes
                                        : p.digits[row >> p.log_piece] + (row & ((1 << p.log_piece) - 1)) * p.row_bytes;
        HeldInputs<FORMAT> x;
        x.load(digits + g % 2 * p.plane_bytes + cell * p.cell_bytes + t * 8, lane);
        float* out = p.parts + (static_cast<size_t>(cell) * p.room + first + t) * 16 * p.tiles + first_tile * 16 + g;
        const float one[1] = {1.0f};
        at += tiles;
#pragma unroll 1
        for (int left = tiles; left > 0;) {
            const char* weights = stream.ring.wait() + stream.own * cell_bytes(FORMAT);
            const int n = min(stream.pack, left);
            left -= n;
#pragma unroll 1
            for (int k = 0; k < n; k++, weights += stream.sharers * cell_bytes(FORMAT), out += 16) {
                Sums<1> sums;
                add_expert_cell(FORMAT, weights, grid, lane, x, one, sums);
                if (t < rows) out[0] = sums.v[0][0], out[8] = sums.v[0][1];
            }
            stream.release();
        }
    }
}

// ── activations ──────────────────────────────────────────────────────────────────────────────────────────────────────

struct Activate {
    const int* pairs;             // [rows · count]: a vector's pair, or −1
    const float* parts;           // [cells][room][tiles][gate, up][16]
    const float* scales[PIECES];  // of the inputs of some rows: [cells][8]
    u8* digits;                   // [rows · count, cells of the width, 2, 256]
    float* digit_scales;          // [rows · count, cells of the width]
    int cells, log_slices, room, tiles, width, count, log_piece;
    float limit;
};

// A block for 256 numbers of a vector, with two threads for each: they share the slices, and the first adds them up.
constexpr int SHARERS = 2, MAX_SLICES = 8;
extern "C" __global__ void __launch_bounds__(SHARERS * CELL, 4) experts_activate(const __grid_constant__ Activate p) {
    __shared__ float slices[MAX_SLICES][2][CELL], most[CELL / WARP];
    const int cell = blockIdx.x, vector = blockIdx.y, row = vector / p.count, i = threadIdx.x % CELL, column = cell * CELL + i;
    const float* scales = p.scales[row >> p.log_piece] + (row & ((1 << p.log_piece) - 1));
    const int of_cell = p.room * 32 * p.tiles, count = 1 << p.log_slices;
    wait_for_previous();
    let_next_start();  // only now: the next kernel reads what is older than the kernel before this one
    const int pair = __ldcg(p.pairs + vector);
    if (pair < 0) return;
    const float* from = p.parts + pair * 32 * p.tiles + column / 16 * 32 + column % 16;
    if (column < p.width)
#pragma unroll 4
        for (int slice = threadIdx.x / CELL; slice < count; slice += SHARERS) {
            float gate = 0, up = 0;
#pragma unroll 2
            for (int c = p.cells * slice >> p.log_slices; c < p.cells * (slice + 1) >> p.log_slices; c++) {
                const float scale = __ldcg(scales + c * 8);
                gate = fmaf(__ldcg(from + c * of_cell), scale, gate), up = fmaf(__ldcg(from + c * of_cell + 16), scale, up);
            }
            slices[slice][0][i] = gate, slices[slice][1][i] = up;
        }
    __syncthreads();
    if (threadIdx.x >= CELL) return;
    float v = 0;
    if (column < p.width) {
        float gate = 0, up = 0;
#pragma unroll 1
        for (int slice = 0; slice < count; slice++) gate += slices[slice][0][i], up += slices[slice][1][i];
        v = swiglu(gate, up, p.limit);
    }
    const float warps_most = warp_largest(fabsf(v));
    if (i % WARP == 0) most[i / WARP] = warps_most;
    named_barrier(1, CELL);
    float largest = most[0];
#pragma unroll
    for (int k = 1; k < CELL / WARP; k++) largest = fmaxf(largest, most[k]);
    const float2 scale = digit_scale(largest);
    const int2 digits = digits_of(v, scale.y);
    const int at = vector * gridDim.x + cell;
    p.digits[at * 2 * CELL + i] = static_cast<u8>(digits.x), p.digits[at * 2 * CELL + CELL + i] = static_cast<u8>(digits.y);
    if (i == 0) p.digit_scales[at] = scale.x;
}

// ── sums ─────────────────────────────────────────────────────────────────────────────────────────────────────────────

struct Sum {
    const Jobs* jobs;
    const int* pairs;                      // [rows · count]: a vector's pair, or −1
    const float* parts;                    // [cells][room][16 · tiles]
    const float* scales;                   // [vectors, cells]
    const float* shared_parts;             // [cells][rows][16 · tiles], or null
    const float* shared_scales;            // [rows, cells]
    float* out;                            // [rows, width]
    int cells, log_slices, room, tiles, width, rows, count;
    const char* ahead;  // see experts.cu
    int ahead_bytes;
};

constexpr int MAX_CELLS = 32, SUMMED = MAX_COUNT + 1;

// A thread a number: the shared expert's share first, then the experts', rising; eight cells at a time.
extern "C" __global__ void __launch_bounds__(CELL, 4) experts_sum(const __grid_constant__ Sum p) {
    __shared__ int own_pairs[MAX_COUNT];
    __shared__ float factors[MAX_CELLS][SUMMED];  // of the shared expert, of the row's pairs
    const int row = blockIdx.y, column = blockIdx.x * CELL + threadIdx.x, i = threadIdx.x;
    let_next_start();
    if (blockIdx.y == 0) fetch_ahead(p.ahead, p.ahead_bytes);
    wait_for_previous();
    if (i < WARP) {  // the row's pairs in their order, which is that of experts
        const int pair = i < p.count ? __ldcg(p.pairs + row * p.count + i) : -1;
        const float weight = pair >= 0 ? __ldcg(&p.jobs->weight[pair]) : 0.0f;
        int place = 0;
#pragma unroll
        for (int k = 0; k < MAX_COUNT; k++) {
            const int other = __shfl_sync(ALL, pair, k);
            place += other >= 0 && other < pair;
        }
        const u32 there = __ballot_sync(ALL, pair >= 0);
        if (i < MAX_COUNT && i >= __popc(there)) own_pairs[i] = -1;
        if (pair >= 0) {
            own_pairs[place] = pair;
            const float* scales = p.scales + (static_cast<size_t>(row) * p.count + i) * p.cells;
#pragma unroll 4
            for (int c = 0; c < p.cells; c++) factors[c][1 + place] = __ldcg(scales + c) * weight;
        }
    } else if (const int c = i - WARP; p.shared_parts && c < p.cells) {
        factors[c][0] = __ldcg(p.shared_scales + row * p.cells + c);
    }
    __syncthreads();
    if (column >= p.width) return;
    constexpr int TOGETHER = 4;
    const size_t stride = 16 * static_cast<size_t>(p.tiles);
    float sum = 0, own = 0;
    int slice = 0;
    auto add_slice = [&](int first, int end) {  // cells of a slice: the shared expert's come before all others
        if (p.shared_parts)
#pragma unroll 1
            for (int c = first; c < end; c++)
                own = fmaf(__ldcg(p.shared_parts + (static_cast<size_t>(c) * p.rows + row) * stride + column), factors[c][0], own);
#pragma unroll 1
        for (int c = first; c < end; c++)
#pragma unroll 1
            for (int k = 0; k < MAX_COUNT && own_pairs[k] >= 0; k++)
                own = fmaf(__ldcg(p.parts + (static_cast<size_t>(c) * p.room + own_pairs[k]) * stride + column), factors[c][1 + k], own);
        sum += own, own = 0;
    };
    if (p.cells == 1 << p.log_slices) {  // a cell to a slice, as published models have it: many loads at a time
#pragma unroll 1
        for (; slice + TOGETHER <= p.cells; slice += TOGETHER) {
            float v[TOGETHER][SUMMED];
#pragma unroll
            for (int j = 0; j < TOGETHER; j++) {
                const int c = slice + j;
                v[j][0] = p.shared_parts ? __ldcg(p.shared_parts + (static_cast<size_t>(c) * p.rows + row) * stride + column) : 0.0f;
#pragma unroll
                for (int k = 0; k < MAX_COUNT; k++)
                    if (own_pairs[k] >= 0) v[j][1 + k] = __ldcg(p.parts + (static_cast<size_t>(c) * p.room + own_pairs[k]) * stride + column);
            }
#pragma unroll
            for (int j = 0; j < TOGETHER; j++) {
                own = p.shared_parts ? fmaf(v[j][0], factors[slice + j][0], 0.0f) : 0.0f;
#pragma unroll
                for (int k = 0; k < MAX_COUNT; k++)
                    if (own_pairs[k] >= 0) own = fmaf(v[j][1 + k], factors[slice + j][1 + k], own);
                sum += own, own = 0;
            }
        }
    }
#pragma unroll 1
    for (; slice < 1 << p.log_slices; slice++) add_slice(p.cells * slice >> p.log_slices, p.cells * (slice + 1) >> p.log_slices);
    p.out[static_cast<size_t>(row) * p.width + column] = sum;
}

#ifdef EXPERT_FORMAT
// shared: the same of the shared expert, Q8_0; it, and the jobs, must be older than the kernel before this one.
struct Passes {
    Pass shared, routed;
    int stages, stage_bytes, sharers;  // of a ring; sharers: warps that have one together
    int old;  // whether they are
};
extern "C" __global__ void __launch_bounds__(PASS_WARPS * 32, 1) experts_pass(const __grid_constant__ Passes p) {
    extern __shared__ __align__(128) char memory[];
    const int warp = threadIdx.x / WARP, lane = static_cast<int>(hidden(threadIdx.x % WARP));  // hidden: else it is found out anew for every tile
    u64* bars = reinterpret_cast<u64*>(memory);
    Jobs& jobs = *reinterpret_cast<Jobs*>(memory + 1024);
    const int ring_bytes = p.stages * p.stage_bytes, number = warp / p.sharers;
    char *rings = memory + 1024 + JOBS, *grid = nullptr, *own = rings + number * ring_bytes;
    if (EXPERT_FORMAT == IQ2_XXS) {  // rings before the grid and behind it
        grid = memory + (WIDE_GRID - shared_address(memory) % WIDE_GRID) % WIDE_GRID;
        const int before = static_cast<int>(grid - rings) / ring_bytes;
        if (number >= before) own = grid + WIDE_GRID + (number - before) * ring_bytes;
        for (int i = threadIdx.x; i < 256 * 16; i += PASS_WARPS * WARP)
            *reinterpret_cast<uint2*>(grid + i / 16 * 256 + i % 16 * 8) = p.routed.grid[i / 16];
    }
    Ring ring(own, bars + number * p.stages, p.stages, p.stage_bytes, warp % p.sharers ? 1 : lane);  // the first warp makes the barriers
    __syncthreads();
#ifdef WITH_SHARED
    {
        read_jobs(p.shared.jobs, jobs, p.shared.room);
        Stream<Q8_0> stream(p.shared, jobs, ring, p.sharers, lane);
        pass(stream, grid);
        __syncthreads();
    }
#endif
    let_next_start();
    if (!p.old) wait_for_previous();
    read_jobs(p.routed.jobs, jobs, p.routed.room);
    Stream<EXPERT_FORMAT> stream(p.routed, jobs, ring, p.sharers, lane);
    wait_for_previous();
    pass(stream, grid);
}
#endif
