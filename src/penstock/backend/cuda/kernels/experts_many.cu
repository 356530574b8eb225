// A layer's experts for 3 to 32 rows, in five launches: who sees which rows; gate and up; activations; down; sums.  The shared expert's are
// a part of each, and its gate and up, which need nobody's choice, are done while that is made.
//
// An expert has few of the rows (of 8 rows, 46 experts have one each; of 32, 137 have 1.4), so its weights are unpacked for one row or two,
// and unpacking is what costs: IQ2_XXS takes 29 instructions for 512 weights, Q2_K 18, of those that four schedulers can issue while memory
// delivers them 26 and 32.  A warp therefore does nothing else.  It keeps the inputs of a job's 256 columns in registers while the weights of
// many tiles pass by, and writes what 256 columns make of 16 rows of weights.  Nobody meets anybody: the kernels behind add up, in the order
// in which experts_up.cu and experts_down.cu do, so that a row has the same bits.
#define ROUTED_ROWS 32
#include "epilogue.cuh"
#include "routing.cuh"

constexpr int PIECES = 32;  // of the rows, that inputs come in

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
    let_next_start();
    wait_for_previous();
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
    int blocks;                              // that take part: the first
    int of_vectors, log_piece;               // whether inputs belong to a row and an expert, or to a row
    int row_bytes, cell_bytes, plane_bytes;  // how far digits lie apart
};

// The inputs of SETS jobs in 256 columns: lane 4 g + t has digit g % 2 of row g / 2.  A lane whose row does not exist has another's
// (formats.cuh).  Several sets: Q8_0 alone.
template <int FORMAT, int SETS>
struct HeldInputs {
    static constexpr bool NEGATIVE = FORMAT == IQ2_XXS || FORMAT == MXFP4, HELD = true;
    static_assert(SETS == 1 || FORMAT == Q8_0);
    uint2 x[SETS][STEPS], negated[NEGATIVE ? STEPS : 1];
    uint2 sums;  // Q2_K: of sixteen columns, 128 · x + y: of steps 4 (t % 2) …, columns 16 (t / 2) …, a byte each

    PS_DEVICE void load(int set, const u8* plane, int lane) {
#pragma unroll
        for (int i = 0; i < STEPS; i++) x[set][i] = __ldcg(reinterpret_cast<const uint2*>(plane + i * 32));
        if constexpr (NEGATIVE)
#pragma unroll
            for (int i = 0; i < STEPS; i++)  // hidden: else they are made anew for every tile
                negated[i] = {hidden(negate_bytes(x[0][i].x)), hidden(negate_bytes(x[0][i].y))};
        if constexpr (FORMAT == Q2_K) {
            sums = {0, 0};
#pragma unroll
            for (int i = 0; i < STEPS; i++) {
                int sum = __dp4a(static_cast<int>(x[0][i].x), 0x01010101, __dp4a(static_cast<int>(x[0][i].y), 0x01010101, 0));
                sum += __shfl_xor_sync(ALL, sum, 1);
                const int at = i % 4 * 8;
                if (lane % 2 == i / 4) sums.x |= (sum >> 7 & 255) << at, sums.y |= (sum & 127) << at;
            }
        }
    }
    PS_DEVICE uint2 step(int set, int i) const { return x[set][i]; }
    PS_DEVICE uint2 negative(int, int i) const { return negated[NEGATIVE ? i : 0]; }
};

// Weights on their way from memory to the warps whose cells lie side by side: a copy of a cell alone is too small to be fast.  They share
// stages of some tiles each, [tiles][sharers] cells.  A warp that does nothing else has them filled, of all rings of the block.
struct Stages {
    char* memory;
    u64 *full, *left;  // [count]: it is filled; all warps have left it
    int count, bytes;
    int at = 0;
    u32 parity;

    // parity: 0 for those who read; for who fills 1, because a new barrier lets those pass who wait for the phase before its first
    PS_DEVICE Stages(char* memory, u64* bars, int count, int bytes, u32 parity)
        : memory(memory), full(bars), left(bars + count), count(count), bytes(bytes), parity(parity) {}
    PS_DEVICE void make_barriers(int sharers) const {
#pragma unroll 1
        for (int i = 0; i < count; i++) barrier_init(full + i, warp_copiers(0).arrivals()), barrier_init(left + i, sharers);
        barrier_init_visible();
    }
    PS_DEVICE const char* wait() const {
        barrier_wait(full + at, parity);
        return memory + at * bytes;
    }
    PS_DEVICE void leave(int lane) {
        __syncwarp();
        if (lane == 0) barrier_arrive(left + at);
        advance();
    }
    PS_DEVICE void advance() {
        if (++at == count) at = 0, parity ^= 1;
    }
};

// A ring's share of a pass: tiles [begin, end) of all jobs' one behind the other, cells first_cell ….  SETS jobs go together, which are
// then one expert's.
template <int SETS>
struct Share {
    int begin, end, first_cell;

    PS_DEVICE Share(const Pass& p, const Jobs& jobs, int rings, int sharers, int number) {
        const int across = p.cells / sharers, range = number / across, ranges = p.blocks * rings / across;
        const int total = (jobs.count + SETS - 1) / SETS * p.tiles, each = total / ranges, more = total - each * ranges;
        begin = each * range + min(range, more), end = range < ranges ? begin + each + (range < more) : begin;
        first_cell = (number - range * across) * sharers;
    }
};

// A stage of a ring: `count` pieces, which lie apart.
struct Asked {
    const char* from;
    char* to;
    u64* full;
    int count;

    // All lanes: what lane `of` asks for.
    PS_DEVICE void copy_of(int of, int bytes, int apart, int lane) const {
        const Copiers lanes = warp_copiers(lane);
        const char* source = reinterpret_cast<const char*>(__shfl_sync(ALL, reinterpret_cast<u64>(from), of));
        char* target = reinterpret_cast<char*>(__shfl_sync(ALL, reinterpret_cast<u64>(to), of));
        u64* bar = reinterpret_cast<u64*>(__shfl_sync(ALL, reinterpret_cast<u64>(full), of));
#pragma unroll 1
        for (int left = __shfl_sync(ALL, count, of); left > 0; left--, source += apart, target += bytes) lanes.stream(target, source, bytes, bar);
        lanes.close(bar);
    }
};

// Lane r has the stages of ring r filled.
template <int FORMAT, int SETS>
PS_DEVICE void fill(const Pass& p, const Jobs& jobs, Stages stages, int rings, int sharers, int lane) {
    constexpr int BYTES = cell_bytes(FORMAT);
    const Share<SETS> share(p, jobs, rings, sharers, blockIdx.x * rings + lane);
    const int bytes = sharers * BYTES, pack = stages.bytes / bytes;
    int at = share.begin, job = at / p.tiles, tile = at - job * p.tiles;
    bool more = lane < rings && at < share.end;
#if !BULK
    Asked asked;
#endif
#pragma unroll 1
    while (__any_sync(ALL, more)) {
        const bool now = more && barrier_test(stages.left + stages.at, stages.parity);
        if (now) {
            const int n = min(min(pack, p.tiles - tile), share.end - at);  // of one job
            const char* from = p.weights + ((static_cast<size_t>(jobs.job[job * SETS].expert) * p.tiles + tile) * p.cells + share.first_cell) * BYTES;
            char* to = stages.memory + stages.at * stages.bytes;
#if BULK
            barrier_expect(stages.full + stages.at, n * bytes);
#pragma unroll 1
            for (int k = 0; k < n; k++, from += static_cast<size_t>(p.cells) * BYTES) stream_copy(to + k * bytes, from, bytes, stages.full + stages.at);
            stages.advance();
#else
            asked = {from, to, stages.full + stages.at, n};
            stages.advance();
#endif
            at += n, tile += n, more = at < share.end;
            if (tile == p.tiles) tile = 0, job++;
        }
#if !BULK  // the whole warp for one ring after the other
#pragma unroll 1
        for (u32 rings_now = __ballot_sync(ALL, now); rings_now; rings_now &= rings_now - 1) asked.copy_of(__ffs(rings_now) - 1, bytes, p.cells * BYTES, lane);
#endif
        if (!__any_sync(ALL, now)) __nanosleep(50);  // others have work for this scheduler
    }
}

// A warp's cells of its ring's share.
template <int FORMAT, int SETS>
PS_DEVICE void pass(const Pass& p, const Jobs& jobs, Stages stages, const char* grid, int rings, int sharers, int lane) {
    constexpr int BYTES = cell_bytes(FORMAT);
    const int warp = threadIdx.x / WARP, own = warp % sharers, pack = stages.bytes / (sharers * BYTES), g = lane / 4, t = lane % 4;
    const Share<SETS> share(p, jobs, rings, sharers, blockIdx.x * rings + warp / sharers);
    const int cell = share.first_cell + own;
#pragma unroll 1
    for (int at = share.begin; at < share.end;) {
        const int u = at / p.tiles, first_tile = at - u * p.tiles, tiles = min(p.tiles - first_tile, share.end - at);
        HeldInputs<FORMAT, SETS> x;
        bool there[SETS];
        float* out[SETS];
        float one[SETS];
#pragma unroll
        for (int s = 0; s < SETS; s++) {
            const Job& job = jobs.job[min(u * SETS + s, jobs.count - 1)];
            const int rows = job.rows, first = job.first, slot = g / 2 < rows ? g / 2 : 0;
            const int row = p.of_vectors ? jobs.vector[first + slot] : job.row[slot];
            const u8* digits = p.of_vectors ? p.digits[0] + static_cast<size_t>(row) * p.row_bytes
                                            : p.digits[row >> p.log_piece] + (row & ((1 << p.log_piece) - 1)) * p.row_bytes;
            x.load(s, digits + g % 2 * p.plane_bytes + cell * p.cell_bytes + t * 8, lane);
            there[s] = t < rows && u * SETS + s < jobs.count;
            out[s] = p.parts + (static_cast<size_t>(cell) * p.room + first + t) * 16 * p.tiles + first_tile * 16 + g;
            one[s] = 1.0f;
        }
        at += tiles;
#pragma unroll 1
        for (int left = tiles; left > 0; left -= pack) {
            const char* weights = stages.wait() + own * BYTES;
#pragma unroll 1
            for (int k = min(pack, left); k > 0; k--, weights += sharers * BYTES) {
                Sums<SETS> sums;
                if constexpr (SETS > 1) cell_q8_0<SETS>(weights, lane, x, one, sums);
                else add_expert_cell(FORMAT, weights, grid, lane, x, one, sums);
#pragma unroll
                for (int s = 0; s < SETS; s++) {
                    if (there[s]) out[s][0] = sums.v[s][0], out[s][8] = sums.v[s][1];
                    out[s] += 16;
                }
            }
            stages.leave(lane);
        }
    }
}

// ── activations ──────────────────────────────────────────────────────────────────────────────────────────────────────

struct Vectors {
    const float* parts;   // [cells][room][tiles][gate, up][16]
    u8* digits;           // [vectors, cells of the width, 2, 256]
    float* digit_scales;  // [vectors, cells of the width]
    int room;
    float limit;
};
struct Activate {
    Vectors routed, shared;       // vectors: rows · count; rows
    const int* pairs;             // [rows · count]: a vector's pair, or −1
    const float* scales[PIECES];  // of the inputs of some rows: [cells][8]
    int cells, log_slices, tiles, width, count, log_piece;
};

// A block for 256 numbers of a vector, a thread for each.
constexpr int MAX_SLICES = 8;
extern "C" __global__ void __launch_bounds__(CELL, 3) experts_activate(const __grid_constant__ Activate p) {
    __shared__ float most[CELL / WARP], scale[2 * MAX_SLICES];  // scale: of the inputs' cells, the first ones
    __shared__ int pair;
    const bool shared = static_cast<int>(blockIdx.y) >= p.routed.room;
    const Vectors& v = shared ? p.shared : p.routed;
    const int cell = blockIdx.x, vector = blockIdx.y - (shared ? p.routed.room : 0), row = shared ? vector : vector / p.count;
    const int i = threadIdx.x, column = cell * CELL + i, of_cell = v.room * 32 * p.tiles, count = 1 << p.log_slices;
    const float* scales = p.scales[row >> p.log_piece] + (row & ((1 << p.log_piece) - 1));
    wait_for_previous();
    let_next_start();  // only now: the next kernel reads what is older than the kernel before this one
    // What all threads want one brings: thousands of requests for the same line go one by one.
    if (i < min(p.cells, 2 * MAX_SLICES)) scale[i] = __ldcg(scales + i * 8);
    if (i == WARP) pair = shared ? vector : __ldcg(p.pairs + vector);
    __syncthreads();
    if (pair < 0) return;
    float gate = 0, up = 0;
    if (column < p.width) {
        const float* from = v.parts + static_cast<size_t>(pair) * 32 * p.tiles + column / 16 * 32 + column % 16;
        if (p.cells == 2 * MAX_SLICES) {  // as published models have it: all loads at once
            float parts[2 * MAX_SLICES][2];
#pragma unroll
            for (int c = 0; c < 2 * MAX_SLICES; c++) parts[c][0] = __ldcg(from + c * of_cell), parts[c][1] = __ldcg(from + c * of_cell + 16);
#pragma unroll
            for (int c = 0; c < 2 * MAX_SLICES; c += 2) {
                gate += fmaf(parts[c + 1][0], scale[c + 1], parts[c][0] * scale[c]);
                up += fmaf(parts[c + 1][1], scale[c + 1], parts[c][1] * scale[c]);
            }
        } else {
#pragma unroll 1
            for (int slice = 0; slice < count; slice++) {
                float own_gate = 0, own_up = 0;
#pragma unroll 2
                for (int c = p.cells * slice >> p.log_slices; c < p.cells * (slice + 1) >> p.log_slices; c++) {
                    const float own = c < 2 * MAX_SLICES ? scale[c] : __ldcg(scales + c * 8);
                    own_gate = fmaf(__ldcg(from + c * of_cell), own, own_gate), own_up = fmaf(__ldcg(from + c * of_cell + 16), own, own_up);
                }
                gate += own_gate, up += own_up;
            }
        }
    }
    const float act = column < p.width ? swiglu(gate, up, v.limit) : 0.0f;
    const float warps_most = warp_largest(fabsf(act));
    if (i % WARP == 0) most[i / WARP] = warps_most;
    __syncthreads();
    float largest = most[0];
#pragma unroll
    for (int k = 1; k < CELL / WARP; k++) largest = fmaxf(largest, most[k]);
    const float2 digit = digit_scale(largest);
    const int2 digits = digits_of(act, digit.y);
    const int at = vector * gridDim.x + cell;
    v.digits[at * 2 * CELL + i] = static_cast<u8>(digits.x), v.digits[at * 2 * CELL + CELL + i] = static_cast<u8>(digits.y);
    if (i == 0) v.digit_scales[at] = digit.x;
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
    const char* ahead;  // see experts_down.cu
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
// shared: the same of the shared expert, Q8_0, before the others.  All rows see it, so two jobs go together: half as many bytes from the
// second-level cache.
struct Passes {
    Pass shared, routed;
    int sharers;  // warps that have a ring together
    int ring_bytes, shared_stages, stages, stage_bytes;
    int first;  // whether this is gate and up: inputs are older than the kernel before, which makes jobs.  Else jobs are, and it makes inputs
};
extern "C" __global__ void __launch_bounds__((PASS_WARPS + 1) * 32, 1) experts_pass(const __grid_constant__ Passes p) {
    extern __shared__ __align__(128) char memory[];
    const int warp = threadIdx.x / WARP, lane = static_cast<int>(hidden(threadIdx.x % WARP));  // hidden: else it is found out anew for every tile
    const bool fills = warp == PASS_WARPS;
    const int rings = PASS_WARPS / p.sharers, ring = fills ? min(lane, rings - 1) : warp / p.sharers;
    u64* bars = reinterpret_cast<u64*>(memory);
    Jobs& jobs = *reinterpret_cast<Jobs*>(memory + 1024);
    char *at = memory + 1024 + JOBS, *grid = nullptr, *own = at + ring * p.ring_bytes;
    if (EXPERT_FORMAT == IQ2_XXS) {
#ifdef NARROW_GRID
        grid = at + rings * p.ring_bytes;
#else  // rings before the grid and behind it
        grid = memory + (WIDE_GRID - shared_address(memory) % WIDE_GRID) % WIDE_GRID;
        const int before = static_cast<int>(grid - at) / p.ring_bytes;
        if (ring >= before) own = grid + WIDE_GRID + (ring - before) * p.ring_bytes;
#endif
        for (int i = threadIdx.x; i < 256 * HELD_COPIES; i += blockDim.x)
            *reinterpret_cast<uint2*>(grid + i / HELD_COPIES * HELD_ENTRY + i % HELD_COPIES * 8) = p.routed.grid[i / HELD_COPIES];
    }
    const Stages stages(own, bars + ring * 2 * p.stages, p.stages, p.stage_bytes, fills);
    if (fills && lane < rings) stages.make_barriers(p.sharers);
#ifdef WITH_SHARED
    {
        const Stages stages(own, bars + rings * 2 * p.stages + ring * 2 * p.shared_stages, p.shared_stages, p.sharers * cell_bytes(Q8_0), fills);
        if (fills && lane < rings) stages.make_barriers(p.sharers);
        read_jobs(p.shared.jobs, jobs, p.shared.room);  // with a barrier
        if (fills) {
            fill<Q8_0, 2>(p.shared, jobs, stages, rings, p.sharers, lane);
        } else {
            if (!p.first) wait_for_previous();
            pass<Q8_0, 2>(p.shared, jobs, stages, grid, rings, p.sharers, lane);
        }
        __syncthreads();
    }
#endif
    let_next_start();
    if (p.first) wait_for_previous();
    read_jobs(p.routed.jobs, jobs, p.routed.room);  // with a barrier
    if (fills) {
        fill<EXPERT_FORMAT, 1>(p.routed, jobs, stages, rings, p.sharers, lane);
    } else {
        wait_for_previous();
        pass<EXPERT_FORMAT, 1>(p.routed, jobs, stages, grid, rings, p.sharers, lane);
    }
}
#endif
