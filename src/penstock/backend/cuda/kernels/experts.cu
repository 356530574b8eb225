// Routed experts for a few rows: gate and up with the activation, then down with the weighted sum.
//
// Floor, one row, q2 mix: gate and up 6 · 4.33 MB (5.8 µs at 4.5 TB/s), down 6 · 2.75 MB and the shared expert's 8.9 MB (5.6 µs).
// Rows are grouped by expert: an expert's weights are read once and multiplied with all rows (they are columns of the same
// tensor-core operand); what a row has not asked for is not kept.  What was chosen comes from the product that wrote the router's logits.
#include "epilogue.cuh"
#include "routing.cuh"

struct GateUp {
    const char* weights;  // [experts][tiles][2 · cells] cells: gate and up of a tile side by side
    const uint2* grid;    // IQ2_XXS: [256]
    const Chosen* chosen;
    Inputs inputs;
    DigitOutput digits;  // vectors: row · count + slot; counters [unique][cells]
    int format, tiles, cells, rows, columns, forms, width, slices, per_row;
    int stages, stage_bytes, depth;  // depth: tiles of a warp whose partial sums are kept
    float limit;
};

constexpr int CHOSEN = (sizeof(Chosen) + 127) / 128 * 128;

template <int WARPS>
PS_DEVICE int slices_for(int cells) {
    int slices = WARPS;
    while (slices > cells) slices /= 2;
    return slices;
}

template <int SETS, class Source>
PS_DEVICE void add_expert_cell(int format, const char* cell, const char* grid, int lane, const Source& x,
                               const float (&scale)[SETS], Sums<SETS>& sums) {
    if (format == IQ2_XXS) {
        Sums<SETS>* const one[1] = {&sums};
        cells_iq2_xxs<SETS, 1>(cell, 0, grid, lane, x, scale, one);
    }
    if (format == Q2_K) cell_q2_k<SETS>(cell, lane, x, scale, sums);
    if (format == Q4_K) cell_q4_k<SETS>(cell, lane, x, scale, sums);
    if (format == MXFP4) cell_mxfp4<SETS>(cell, lane, x, scale, sums);
    if (format == Q8_0) cell_q8_0<SETS>(cell, lane, x, scale, sums);
    if (format == Q6_K) cell_q6_k<SETS>(cell, lane, x, scale, sums);
}

template <int SETS>
PS_DEVICE void put_sums(const Sums<SETS>& sums, float* red, int lane) {
#pragma unroll
    for (int s = 0; s < SETS; s++) {
        red[(4 * s + lane % 4) * 16 + lane / 4] = sums.v[s][0];
        red[(4 * s + lane % 4) * 16 + lane / 4 + 8] = sums.v[s][1];
    }
}

constexpr int UP_WARPS = 16;

template <int FORMAT, int SETS, Source SOURCE>
PS_DEVICE void gate_up(const GateUp& p) {
    extern __shared__ __align__(128) char shared[];
    constexpr int WARPS = UP_WARPS, BYTES = cell_bytes(FORMAT);
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    u64* bars = reinterpret_cast<u64*>(shared);
    Chosen& chosen = *reinterpret_cast<Chosen*>(shared + 1024);
    float* scratch = reinterpret_cast<float*>(shared + 1024 + CHOSEN);
    float* red = scratch + SCRATCH_FLOATS;  // [depth][warps][gate, up][rows][16]
    const int part = 2 * p.rows * 16;
    char* grid = reinterpret_cast<char*>(red + p.depth * WARPS * part);
    char* rings = grid + (FORMAT == IQ2_XXS ? GRID_BYTES : 0);
    char* x = rings + WARPS * p.stages * p.stage_bytes;
    const InputPlan plan = {p.columns, p.rows, p.forms};

    Ring ring(rings + warp * p.stages * p.stage_bytes, bars + warp * p.stages, p.stages, p.stage_bytes, lane);
    u64* image_bar = bars + 127;
    if (threadIdx.x == 0) barrier_init(image_bar, 1), barrier_init_visible();
    if (FORMAT == IQ2_XXS) fill_grid(grid, p.grid);
    wait_for_previous();
    let_next_start();  // only now: the next kernel reads what was chosen before it waits for this one
    load_chosen(p.chosen, chosen);

    const int slices = p.slices, together = WARPS / slices, slice = warp % slices;
    const int first = p.cells * slice / slices, end = p.cells * (slice + 1) / slices;
    const int per_expert = (p.tiles + together - 1) / together, rounds = chosen.count * per_expert;
    // What is to be streamed next.
    int fill_round = blockIdx.x, left = 0;
    const char* from = nullptr;
    auto start = [&] {
        for (; fill_round < rounds; fill_round += gridDim.x) {
            const int u = fill_round / per_expert, tile = (fill_round - u * per_expert) * together + warp / slices;
            if (tile >= p.tiles) continue;
            const size_t expert = chosen.unique[u];
            from = p.weights + ((expert * p.tiles + tile) * 2 * p.cells + first) * BYTES;
            left = end - first;
            return;
        }
    };
    auto refill = [&] {
        if (left == 0) return;
        if (lane == 0) {
            u64* bar = ring.announce(2 * BYTES);
            bulk_copy(ring.to_fill(), from, BYTES, bar);
            bulk_copy(ring.to_fill() + BYTES, from + static_cast<size_t>(p.cells) * BYTES, BYTES, bar);
        }
        ring.advance_fill();
        from += BYTES;
        if (--left == 0) fill_round += gridDim.x, start();
    };
    start();
    for (int i = 0; i < p.stages; i++) refill();
    prepare<WARPS, SOURCE>(p.inputs, plan, x, scratch, image_bar, 0);

    const float* scales = reinterpret_cast<const float*>(x + plan.scales_at());
    for (int round = blockIdx.x; round < rounds;) {
        const int first_round = round;
        int kept = 0;
        for (; round < rounds && kept < p.depth; round += gridDim.x, kept++) {
            if (round % per_expert * together + warp / slices >= p.tiles) continue;
            Sums<SETS> gate, up;
            for (int c = first; c < end; c++) {
                const PlaneInputs<SETS> source(x, plan, c, lane);
                float scale[SETS];
#pragma unroll
                for (int s = 0; s < SETS; s++) scale[s] = 4 * s + t < p.rows ? scales[c * 8 + 4 * s + t] : 0.0f;
                const char* cell = ring.wait();
                if constexpr (FORMAT == IQ2_XXS && SETS == 1) {
                    Sums<SETS>* const both[2] = {&gate, &up};
                    cells_iq2_xxs<SETS, 2>(cell, BYTES, grid, lane, source, scale, both);
                } else {
                    add_expert_cell<SETS>(FORMAT, cell, grid, lane, source, scale, gate);
                    add_expert_cell<SETS>(FORMAT, cell + BYTES, grid, lane, source, scale, up);
                }
                ring.release();
                refill();
            }
            float* mine = red + (kept * WARPS + warp) * part;
#pragma unroll
            for (int s = 0; s < SETS; s++)
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    const int row = 4 * s + t;
                    if (row >= p.rows) continue;
                    mine[row * 16 + g + 8 * h] = gate.v[s][h];
                    mine[(p.rows + row) * 16 + g + 8 * h] = up.v[s][h];
                }
        }
        __syncthreads();
        for (int i = warp; i < kept * together; i += WARPS) {  // a tile for every warp
            const int r = first_round + i / together * gridDim.x, u = r / per_expert;
            const int tile = r % per_expert * together + i % together;
            if (tile >= p.tiles) continue;
            const float* parts = red + (i / together * WARPS + i % together * slices) * part;
            for (int k = lane; k < p.rows * 16; k += WARP) {
                const int row = k / 16, at = tile * 16 + k % 16, slot = chosen.slot[u][row];
                if (slot < 0 || at >= p.width) continue;
                float a = 0, b = 0;
                for (int j = 0; j < slices; j++) a += parts[j * part + k], b += parts[j * part + p.rows * 16 + k];
                const size_t vector = row * p.per_row + slot;
                p.digits.values[vector * p.digits.cells * CELL + at] = swiglu(a, b, p.limit);
            }
            const int cell = tile / 16;
            if (is_last(p.digits.counters + u * p.digits.cells + cell, tiles_of_cell(p.tiles, cell), lane))
                for (int row = 0; row < p.rows; row++)
                    if (chosen.slot[u][row] >= 0)
                        write_digits(p.digits, row * p.per_row + chosen.slot[u][row], cell, lane);
        }
        if (round < rounds) __syncthreads();
    }
}

// ── down ─────────────────────────────────────────────────────────────────────────────────────────────────────────────

struct Down {
    const char* weights;  // [experts][tiles][cells] cells
    const char* shared_weights;  // [tiles][cells] cells, Q8_0; or null
    const uint2* grid;
    const Chosen* chosen;
    const u8* digits;            // [rows · count, cells, 2, 256]
    const float* scales;
    const u8* shared_digits;     // [rows, cells, 2, 256]
    const float* shared_scales;
    float* out;                  // [rows, width]
    int format, tiles, cells, rows, width, per_row;  // per_row: experts of a row
    int stages, stage_bytes;
};

// Inputs of a cell in registers, straight from the digits of the kernel before.
template <int SETS>
struct RegisterInputs {
    uint2 b[SETS][STEPS];
    float scale[SETS];  // of input rows t, 4 + t, times the router's weight

    PS_DEVICE uint2 step(int set, int i) const { return b[set][i]; }
    PS_DEVICE uint2 negative(int set, int i) const {
        return {negate_bytes(b[set][i].x), negate_bytes(b[set][i].y)};
    }
    // u: the expert's place among the chosen, −1 the shared one
    PS_DEVICE void load(const Down& p, const Chosen& chosen, int u, int cell, int lane) {
        const int g = lane / 4, t = lane % 4;
#pragma unroll
        for (int s = 0; s < SETS; s++) {
            const int row = 4 * s + g / 2, mine = 4 * s + t;
            const int slot = row >= p.rows ? -1 : u < 0 ? 0 : chosen.slot[u][row];
            const size_t vector = u < 0 ? row : row * p.per_row + slot;
            const u8* from = (u < 0 ? p.shared_digits : p.digits) + ((vector * p.cells + cell) * 2 + g % 2) * CELL + t * 8;
#pragma unroll
            for (int i = 0; i < STEPS; i++) b[s][i] = slot < 0 ? uint2{0, 0} : load8(from + i * 32);
            const int own = mine >= p.rows ? -1 : u < 0 ? 0 : chosen.slot[u][mine];
            const size_t at = (u < 0 ? mine : mine * p.per_row + own) * p.cells + cell;
            scale[s] = own < 0 ? 0.0f : u < 0 ? p.shared_scales[at] : p.scales[at] * chosen.weight[u][mine];
        }
    }
};

constexpr int DOWN_WARPS = 8;

template <int FORMAT, int SETS>
PS_DEVICE void down(const Down& p) {
    extern __shared__ __align__(128) char shared[];
    constexpr int WARPS = DOWN_WARPS, RED = 4 * SETS * 16, BYTES = cell_bytes(FORMAT), SHARED_BYTES = cell_bytes(Q8_0);
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    u64* bars = reinterpret_cast<u64*>(shared);
    Chosen& chosen = *reinterpret_cast<Chosen*>(shared + 1024);
    float* red = reinterpret_cast<float*>(shared + 1024 + CHOSEN);
    char* grid = shared + 1024 + CHOSEN + 2 * WARPS * RED * 4;
    char* rings = grid + (FORMAT == IQ2_XXS ? GRID_BYTES : 0);

    Ring ring(rings + warp * p.stages * p.stage_bytes, bars + warp * p.stages, p.stages, p.stage_bytes, lane);
    if (FORMAT == IQ2_XXS) fill_grid(grid, p.grid);
    const int slices = slices_for<WARPS>(p.cells), together = WARPS / slices, slice = warp % slices;
    const int first = p.cells * slice / slices, n = p.cells * (slice + 1) / slices - first;
    const int steps = (p.tiles + together - 1) / together, pack = p.stage_bytes / BYTES;
    // A step's pieces: the shared expert's cells one by one, then the chosen experts' cells, `pack` to a stage.
    const int shared_pieces = p.shared_weights ? n : 0;
    int pieces = shared_pieces, fill_step = blockIdx.x, fill_piece = 0;
    auto refill = [&](bool known) {  // known: the experts
        while (fill_step < steps && !ring.full()) {
            const int tile = fill_step * together + warp / slices;
            if (tile >= p.tiles || (known && fill_piece == pieces)) {
                fill_step += gridDim.x, fill_piece = 0;
                continue;
            }
            if (fill_piece == shared_pieces && !known) break;
            if (lane == 0) {
                if (fill_piece < shared_pieces) {
                    const char* from = p.shared_weights +
                                       (static_cast<size_t>(tile) * p.cells + first + fill_piece) * SHARED_BYTES;
                    bulk_copy(ring.to_fill(), from, SHARED_BYTES, ring.announce(SHARED_BYTES));
                } else {
                    const int q0 = (fill_piece - shared_pieces) * pack, q1 = min(q0 + pack, chosen.count * n);
                    u64* bar = ring.announce((q1 - q0) * BYTES);
                    int u = q0 / n, c = q0 - u * n;
                    for (int q = q0; q < q1; q++) {
                        const size_t expert = chosen.unique[u];
                        const char* from = p.weights + ((expert * p.tiles + tile) * p.cells + first + c) * BYTES;
                        bulk_copy(ring.to_fill() + (q - q0) * BYTES, from, BYTES, bar);
                        if (++c == n) c = 0, u++;
                    }
                }
            }
            ring.advance_fill();
            fill_piece++;
        }
    };
    refill(false);
    // The kernel before this one let it start only after the router's kernel had ended.
    load_chosen(p.chosen, chosen);
    pieces = shared_pieces + (chosen.count * n + pack - 1) / pack;
    refill(true);
    let_next_start();
    wait_for_previous();

    const int total = shared_pieces + chosen.count * n;  // cells of a step
    int next_u = shared_pieces ? -1 : 0, next_c = 0;  // what `ahead` is to hold next: expert and cell
    auto inputs_of = [&](RegisterInputs<SETS>& to) {
        to.load(p, chosen, next_u, first + next_c, lane);
        if (++next_c < n) return;
        next_c = 0;
        if (++next_u == chosen.count) next_u = shared_pieces ? -1 : 0;
    };
    int turn = 0;
    RegisterInputs<SETS> ahead;
    inputs_of(ahead);
    for (int step = blockIdx.x; step < steps; step += gridDim.x, turn ^= 1) {
        const int tile = step * together + warp / slices;
        if (tile < p.tiles) {
            Sums<SETS> sums;
            const char* stage = nullptr;
            int in_stage = 0;  // cells of the stage that are used
#pragma unroll 1
            for (int q = 0; q < total; q++) {
                const RegisterInputs<SETS> now = ahead;
                inputs_of(ahead);
                const int routed = q - shared_pieces;
                if (routed < 0) {
                    cell_q8_0<SETS>(ring.wait(), lane, now, now.scale, sums);
                } else {
                    if (in_stage == 0) stage = ring.wait();
                    add_expert_cell<SETS>(FORMAT, stage + in_stage * BYTES, grid, lane, now, now.scale, sums);
                    in_stage++;
                }
                if (routed < 0 || in_stage == pack || q + 1 == total) {
                    in_stage = 0;
                    ring.release();
                    refill(true);
                }
            }
            put_sums<SETS>(sums, red + (turn * WARPS + warp) * RED, lane);
        }
        if (slices > 1) named_barrier(1 + warp / slices, slices * WARP);
        else __syncwarp();
        if (slice != (step / gridDim.x) % slices || tile >= p.tiles) continue;
        const float* parts = red + (turn * WARPS + warp - slice) * RED;
        for (int i = lane; i < p.rows * 16; i += WARP) {
            float v = 0;
            for (int k = 0; k < slices; k++) v += parts[k * RED + i];
            if (tile * 16 + i % 16 < p.width) p.out[static_cast<size_t>(i / 16) * p.width + tile * 16 + i % 16] = v;
        }
    }
}

#define GATE_UP(format, name, sets, rows)                                                                                  \
    extern "C" __global__ void __launch_bounds__(UP_WARPS * 32, 1) gate_up_##name##_image_##rows(const __grid_constant__ GateUp p) { \
        gate_up<format, sets, IMAGE>(p);                                                                                   \
    }                                                                                                                      \
    extern "C" __global__ void __launch_bounds__(UP_WARPS * 32, 1) gate_up_##name##_any_##rows(const __grid_constant__ GateUp p) { \
        gate_up<format, sets, ANYTHING>(p);                                                                                \
    }
#define EXPERTS(format, name)                                                                                              \
    GATE_UP(format, name, 1, 4)                                                                                            \
    GATE_UP(format, name, 2, 8)                                                                                            \
    extern "C" __global__ void __launch_bounds__(DOWN_WARPS * 32, 2) down_##name##_4(const __grid_constant__ Down p) {      \
        down<format, 1>(p);                                                                                                \
    }                                                                                                                      \
    extern "C" __global__ void __launch_bounds__(DOWN_WARPS * 32) down_##name##_8(const __grid_constant__ Down p) {         \
        down<format, 2>(p);                                                                                                \
    }

#ifdef EXPERT_FORMAT  // one format at a time: compiling all takes a while
EXPERTS(EXPERT_FORMAT, experts)
#endif
