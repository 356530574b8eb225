// A layer's experts for one row or two: gate and up of the routed ones and of the shared one, with the activation, and the router before them.
//
// Floor, one row, q2 mix: 6 · 4.33 MB and the shared expert's 17.8 MB, 9.6 µs at 4.5 TB/s.  Rows are grouped by expert into jobs
// (routing.cuh): an expert's weights are read once and unpacked once for all rows of a job.  Down: experts_down.cu; more rows:
// experts_many.cu.
#include "epilogue.cuh"
#include "routing.cuh"

// The router's product in the same kernel: tile by tile and slice by slice as dense.cu does it, a unit of work for a block each.
struct RouterPart {
    const char* weights;  // [tiles][pieces], F16; or null: the kernel before has made the logits
    float* out;           // [slices, rows, experts]
    u32* counter;         // units that are done; `down` sets it back to zero
    int tiles, log_slices, pieces;  // pieces: of a slice
};

struct Up {
    const char* weights;         // [experts][tiles][2 · cells] cells: gate and up of a tile side by side
    const char* shared_weights;  // [tiles][2 · cells] cells, Q8_0; or null
    RouterPart router;
    const uint2* grid;           // IQ2_XXS: [256]
    Routing routing;
    const int* places;  // WITH_PLACES: [experts], where an expert lies among the weights, −1 for those that somebody else computes
    Chosen* chosen;  // for those who want to know
    Jobs* jobs;      // for `down`
    Inputs inputs;   // an image; without a router the kernel before lets this one start only when it is complete
    DigitOutput digits;         // vectors: row · count + slot; counters [jobs][cells]
    DigitOutput shared_digits;  // vectors: row; counters [1][cells]
    int tiles, cells, rows, columns, forms, width;
    int log_shared_slices, stages, stage_bytes, pack;  // pack: cells of gate, and of up, to a stage
    int depth;                                     // tiles of a warp whose partial sums are kept
    int early_bytes;                               // of partial sums and grid, or of what the router takes
    float limit, shared_limit;
};

// The inputs of one cell: a lane's plane in the image.  A lane whose row does not exist reads another row's: columns of the operand
// do not meet, and nobody looks at the results.
template <bool WITH_NEGATIVE>
struct PlaneOf {
    static constexpr bool NEGATIVE = WITH_NEGATIVE, HELD = false;
    const char* plane;
    int negated;

    PS_DEVICE PlaneOf(const char* x, const InputPlan& p, int row, int cell, int lane)
        : plane(x + (2 * row + lane / 4 % 2) * p.digit_stride() + cell * CELL + lane % 4 * 8), negated(p.negated_at()) {}
    PS_DEVICE uint2 step(int, int i) const { return load8(plane + i * 32); }
    PS_DEVICE uint2 negative(int, int i) const { return load8(plane + negated + i * 32); }
};

constexpr int LOG_UP_WARPS = 4, UP_WARPS = 1 << LOG_UP_WARPS;

// One warp: partial sums of a tile [slices][gate, up][rows][16] → activations, and digits where it was the last tile of a cell.  vectors:
// [rows], or null: the rows themselves.  Out of line: instructions that run once should be there once.
struct Finish {
    const float* parts;
    const int* vectors;
    u32* counters;
    int part, slices, rows, tile, tiles, width;
    float limit;
};
__device__ __noinline__ void finish_up(const Finish& f, const DigitOutput& out) {
    const int lane = threadIdx.x % WARP;
#pragma unroll 1
    for (int k = lane; k < f.rows * 16; k += WARP) {
        const int vector = f.vectors ? f.vectors[k / 16] : k / 16, at = f.tile * 16 + k % 16;
        if (at >= f.width) continue;
        float gate = 0, up = 0;
#pragma unroll 4
        for (int j = 0; j < f.slices; j++) gate += f.parts[j * f.part + k], up += f.parts[j * f.part + f.part / 2 + k];
        out.values[static_cast<size_t>(vector) * out.cells * CELL + at] = swiglu(gate, up, f.limit);
    }
    const int cell = f.tile / 16;
    if (!is_last(f.counters + cell, tiles_of_cell(f.tiles, cell), lane)) return;
#pragma unroll 1
    for (int k = 0; k < f.rows; k++) write_digits(out, f.vectors ? f.vectors[k] : k, cell, lane);
}

template <int FORMAT>
PS_DEVICE void up(const Up& p) {
    extern __shared__ __align__(128) char shared[];
    constexpr int WARPS = UP_WARPS, BYTES = cell_bytes(FORMAT), SHARED_BYTES = cell_bytes(Q8_0);
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    const int part = 2 * p.rows * 16;
    u64* bars = reinterpret_cast<u64*>(shared);
    Choice& choice = *reinterpret_cast<Choice*>(shared + 1024);
    float* shared_red = reinterpret_cast<float*>(shared + 1024 + CHOICE);  // [tiles][slices][gate, up][rows][16]
    float* red = shared_red + (p.shared_weights ? WARPS / 2 * part : 0);       // [depth][warps][gate, up][rows][16]; `choose` has it first
    char* grid = reinterpret_cast<char*>(red + whole(max(p.depth * WARPS * part, 2 * p.rows * padded_experts(p.routing))));
    char* rings = reinterpret_cast<char*>(red) + p.early_bytes;  // what lies before it has the router's pieces and inputs first
    char* x = rings + WARPS * p.stages * p.stage_bytes;
    const InputPlan plan = {p.columns, p.rows, p.forms};
    const float* scales = reinterpret_cast<const float*>(x + plan.scales_at());

    Ring ring(rings + warp * p.stages * p.stage_bytes, bars + warp * p.stages, p.stages, p.stage_bytes, lane);
    u64 *image_bar = bars + 127, *pieces_bar = bars + 126, *halves_bar = bars + 125;
    const InputPlan router_plan = {p.columns, p.rows, HALVES};
    const int router_n = p.router.pieces, router_bytes = router_n * piece_bytes(F16), units = p.router.tiles << p.router.log_slices;
    char *router_pieces = reinterpret_cast<char*>(red), *router_x = router_pieces + router_bytes;
    auto fetch_pieces = [&](int unit) {
        barrier_expect(pieces_bar, router_bytes);
        stream_copy(router_pieces, p.router.weights + static_cast<size_t>(unit) * router_bytes, router_bytes, pieces_bar);
    };
    if (threadIdx.x == 0) {
        barrier_init(image_bar, 1), barrier_init(pieces_bar, 1), barrier_init(halves_bar, 1), barrier_init_visible();
        if (p.router.weights && blockIdx.x < units) fetch_pieces(blockIdx.x);
    }

    // The routed experts' share of this warp: a slice of every `together`-th tile
    const int log_slices = log_slices_for(p.cells, LOG_UP_WARPS - 1), slices = 1 << log_slices, log_together = LOG_UP_WARPS - log_slices;
    const int slice = warp & (slices - 1), group = warp >> log_slices;  // group: of the warps that share a tile
    const int first = p.cells * slice >> log_slices, end = p.cells * (slice + 1) >> log_slices;
    const int per_job = (p.tiles + (1 << log_together) - 1) >> log_together;

    // The shared expert needs no choice: it comes first, and its weights are on their way before anything else.  Slices are those of
    // the product on its own (dense.py); half of the warps have gate, half up.
    const int log_shared = p.log_shared_slices, shared_slices = 1 << log_shared, shared_together = WARPS / 2 >> log_shared;
    const int half = warp >> log_shared & 1, shared_slice = warp & (shared_slices - 1), shared_group = warp >> (log_shared + 1);
    const int shared_first = p.cells * shared_slice >> log_shared;
    const int shared_n = (p.cells * (shared_slice + 1) >> log_shared) - shared_first;
    const int shared_rounds = p.shared_weights ? (p.tiles + shared_together - 1) >> (LOG_UP_WARPS - 1 - log_shared) : 0;
    int fill_round = blockIdx.x, fill_piece = 0;
    auto fill_shared = [&] {
#pragma unroll 1
        while (fill_round < shared_rounds && !ring.full()) {
            const int tile = fill_round * shared_together + shared_group;
            if (tile < p.tiles && lane == 0) {
                const size_t cell = (static_cast<size_t>(tile) * 2 + half) * p.cells + shared_first + fill_piece;
                stream_copy(ring.to_fill(), p.shared_weights + cell * SHARED_BYTES, SHARED_BYTES, ring.announce(SHARED_BYTES));
            }
            if (tile < p.tiles) ring.advance_fill(), fill_piece++;
            if (tile >= p.tiles || fill_piece == shared_n) fill_round += gridDim.x, fill_piece = 0;
        }
    };
    fill_shared();
    if (p.routing.bias && threadIdx.x * WARP < p.routing.experts) prefetch(p.routing.bias + threadIdx.x * WARP);
    if (p.router.weights) wait_for_previous();
    if (threadIdx.x == 0) {
        if (p.router.weights) {
            const InputPlan from = {p.columns, p.rows, p.inputs.image_forms};
            const u32 bytes = 2 * p.rows * router_plan.half_stride();
            barrier_expect(halves_bar, bytes);
            bulk_copy(router_x, p.inputs.image + from.halves_at(), bytes, halves_bar);
        }
        fetch_image(p.inputs, plan, x, 0, image_bar);
    }
    __syncthreads();
    barrier_wait(image_bar, 0);

    // Four warps have the router's unit, a piece each at a time, before their part of the shared expert; others see the logits when all units
    // are done.  Pieces are added up in the order in which dense.cu does it.
    if (p.router.weights && warp >= WARPS - 4) {
        const int mine = warp - (WARPS - 4);
        float* sums = reinterpret_cast<float*>(shared + 1024);  // [pieces][16][rows]: the choice has this place later
        barrier_wait(halves_bar, 0);
        u32 parity = 0;
#pragma unroll 1
        for (int unit = blockIdx.x; unit < units; unit += gridDim.x, parity ^= 1) {
            const int tile = unit >> p.router.log_slices, slice = unit - (tile << p.router.log_slices);
            barrier_wait(pieces_bar, parity);
#pragma unroll 1
            for (int i = mine; i < router_n; i += 4) {
                float v[1][2] = {};
                piece_f16<1>(router_pieces + i * piece_bytes(F16), lane, router_x, router_plan, (slice * router_n + i) * piece_columns(F16), v);
                if (t < p.rows) sums[(i * 16 + g) * p.rows + t] = v[0][0], sums[(i * 16 + g + 8) * p.rows + t] = v[0][1];
            }
            named_barrier(8, 4 * WARP);
            if (mine == 0) {
                if (unit + gridDim.x < units && lane == 0) fetch_pieces(unit + gridDim.x);
                for (int i = lane; i < 16 * p.rows; i += WARP) {
                    const int expert = tile * 16 + i / p.rows, row = i % p.rows;
                    float v = 0;
                    for (int k = 0; k < router_n; k++) v += sums[k * 16 * p.rows + i];
                    if (expert < p.routing.experts) p.router.out[(slice * p.rows + row) * p.routing.experts + expert] = v * scales[p.cells * 8 + row];
                }
                __syncwarp();
                if (lane == 0) count_up_only(p.router.counter);
            }
            if (unit + gridDim.x < units) named_barrier(8, 4 * WARP);  // the sums have been read
        }
    }

    auto finish_shared = [&](int round) {
        const int number = WARPS - 1 - warp, tile = round * shared_together + number;  // warps that have least to do at the end
        if (number < shared_together && tile < p.tiles)
            finish_up({shared_red + number * shared_slices * part, nullptr, p.shared_digits.counters, part, shared_slices, p.rows, tile,
                       p.tiles, p.width, p.shared_limit},
                      p.shared_digits);
    };
    const uint2 grid_entry = FORMAT == IQ2_XXS ? p.grid[GRID_SHARE * warp + lane % GRID_SHARE] : uint2{0, 0};  // on its way, for later
    int unfinished = -1;
#pragma unroll 1
    for (int round = blockIdx.x; round < shared_rounds; round += gridDim.x) {
        if (unfinished >= 0) {
            __syncthreads();
            finish_shared(unfinished);
            __syncthreads();
        }
        unfinished = round;
        if (round * shared_together + shared_group >= p.tiles) continue;
        Sums<1> sums;
#pragma unroll 1
        for (int c = shared_first; c < shared_first + shared_n; c++) {
            const PlaneOf<false> source(x, plan, g / 2 < p.rows ? g / 2 : 0, c, lane);
            const float scale[1] = {t < p.rows ? scales[c * 8 + t] : 0.0f};
            cell_q8_0<1>(ring.wait(), lane, source, scale, sums);
            ring.release();
            fill_shared();
        }
        float* mine = shared_red + (shared_group * shared_slices + shared_slice) * part + half * part / 2;
        if (t < p.rows) mine[t * 16 + g] = sums.v[0][0], mine[t * 16 + g + 8] = sums.v[0][1];
    }

    if (!p.router.weights) wait_for_previous();
    else if (threadIdx.x == 0) wait_until(p.router.counter, units);  // all blocks are there: one on every multiprocessor
    __syncthreads();
    choose(p.routing, p.rows, choice, red);
#ifdef WITH_PLACES
    keep_present(choice.jobs, p.places);
#endif
    const Jobs& jobs = choice.jobs;
    const bool tells = blockIdx.x == gridDim.x - 1;  // the others: the last block has least to do
    if (tells) write_jobs(jobs, p.jobs);
    let_next_start();  // only now: the next kernel reads the jobs before it waits for this one
    const int rounds = jobs.count * per_job;
    int left = 0;  // what is to be streamed next: cells of a tile's slice
    const char* from = nullptr;
    fill_round = blockIdx.x;
    auto start = [&] {
#pragma unroll 1
        for (; fill_round < rounds; fill_round += gridDim.x) {
            const int u = fill_round / per_job, tile = ((fill_round - u * per_job) << log_together) + group;
            if (tile >= p.tiles) continue;
            from = p.weights + ((static_cast<size_t>(jobs.job[u].expert) * p.tiles + tile) * 2 * p.cells + first) * BYTES;
            left = end - first;
            return;
        }
    };
    auto refill = [&] {
        if (left == 0) return;
        const int cells = min(left, p.pack);
        if (lane == 0) {
            u64* bar = ring.announce(2 * cells * BYTES);
            stream_copy(ring.to_fill(), from, cells * BYTES, bar);
            stream_copy(ring.to_fill() + p.pack * BYTES, from + static_cast<size_t>(p.cells) * BYTES, cells * BYTES, bar);
        }
        ring.advance_fill();
        from += cells * BYTES;
        left -= cells;
        if (left == 0) fill_round += gridDim.x, start();
    };
    start();
#pragma unroll 1
    for (int i = 0; i < p.stages; i++) refill();
    if (FORMAT == IQ2_XXS) fill_grid(grid, warp, lane, grid_entry);
    if (tells)
        for (int i = threadIdx.x; i < static_cast<int>(sizeof(Chosen) / 4); i += blockDim.x)
            reinterpret_cast<u32*>(p.chosen)[i] = reinterpret_cast<const u32*>(&choice.chosen)[i];

    __syncthreads();  // the grid is there
    auto meet = [&] {
        if (slices > 1) named_barrier(1 + group, slices * WARP);
        else __syncwarp();
    };
#pragma unroll 1
    for (int round = blockIdx.x; round < rounds;) {
        const int first_round = round;
        int kept = 0;
#pragma unroll 1
        for (; round < rounds && kept < p.depth; round += gridDim.x, kept++) {
            const int u = round / per_job, n = jobs.job[u].rows;
            if (((round - u * per_job) << log_together) + group >= p.tiles) continue;
            const int column_row = jobs.job[u].row[g / 2 < n ? g / 2 : 0], mine_row = t < n ? jobs.job[u].row[t] : -1;
            Sums<1> gate, up;
#pragma unroll 1
            for (int c = first; c < end;) {
                const char* stage = ring.wait();
#pragma unroll 1
                for (int k = 0; k < p.pack && c < end; k++, c++) {
                    const PlaneOf<true> source(x, plan, column_row, c, lane);
                    const float scale[1] = {mine_row < 0 ? 0.0f : scales[c * 8 + mine_row]};
                    const char* cell = stage + k * BYTES;
                    if constexpr (FORMAT == IQ2_XXS) {
                        Sums<1>* const both[2] = {&gate, &up};
                        cells_iq2_xxs<2>(cell, p.pack * BYTES, grid, lane, source, scale[0], both);
                    } else {
                        add_expert_cell(FORMAT, cell, grid, lane, source, scale, gate);
                        add_expert_cell(FORMAT, cell + p.pack * BYTES, grid, lane, source, scale, up);
                    }
                }
                ring.release();
                refill();
            }
            float* mine = red + (kept * WARPS + warp) * part;
            if (t < p.rows) {
                mine[t * 16 + g] = gate.v[0][0], mine[t * 16 + g + 8] = gate.v[0][1];
                mine[part / 2 + t * 16 + g] = up.v[0][0], mine[part / 2 + t * 16 + g + 8] = up.v[0][1];
            }
        }
        meet();
#pragma unroll 1
        for (int i = slice; i < kept; i += slices) {  // a tile for every warp
            const int r = first_round + i * gridDim.x, u = r / per_job, tile = ((r - u * per_job) << log_together) + group;
            if (tile >= p.tiles) continue;
            finish_up({red + (i * WARPS + group * slices) * part, jobs.vector + jobs.job[u].first, p.digits.counters + u * p.digits.cells, part,
                       slices, jobs.job[u].rows, tile, p.tiles, p.width, p.limit},
                      p.digits);
        }
        if (round < rounds) meet();
    }
    if (unfinished >= 0) finish_shared(unfinished);
}

#ifdef EXPERT_FORMAT  // one format at a time: compiling all takes a while
extern "C" __global__ void __launch_bounds__(UP_WARPS * 32, 1) experts_up(const __grid_constant__ Up p) { up<EXPERT_FORMAT>(p); }
#endif
