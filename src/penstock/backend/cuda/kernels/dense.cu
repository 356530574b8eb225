// Products of a few rows of inputs with dense matrices: projections, router, shared expert, head.
//
// Floor: bytes of the weights / memory bandwidth (4.5 TB/s on an H200): q_b, out_a, out_b 35.7 MB, 7.9 µs each; shared gate and
// up 17.8 MB, 4.0 µs; q_a and kv 6.7 MB, 1.5 µs; compressors and indexer of a ratio-4 layer 38 MB, 8.4 µs; head 563 MB, 124 µs.
//
// A block of eight warps takes a step at a time: 8 / slices tiles of 16 rows, each cut into slices of columns, one for every warp.
// A warp streams its cells through a ring of its own; the first stages are asked for before the kernel waits for the one before it.
#include "epilogue.cuh"

constexpr int WARPS = 8;
constexpr int SEGMENTS = 8;

// Matrices that see the same inputs; their outputs may be anywhere.
struct Segment {
    const char* weights;  // [groups][tiles][cells (twice with `paired`)] cells
    float* out;           // out[row · stride + group · rows + tile row]
    int format, tiles, cells, rows, stride;
    int paired;           // gate and up, tile by tile: the output is swiglu(gate, up)
};

struct Dense {
    Segment segments[SEGMENTS];
    Inputs inputs;  // with groups: group g has columns g · width …
    DigitOutput digits;  // of the first segment's output; digits null: none
    int count, groups, rows, columns, forms;
    int stages, stage_bytes;
    float limit;
};

PS_DEVICE int pieces_of(const Segment& s) { return s.cells * (CELL / piece_columns(s.format)); }
PS_DEVICE int slices_of(const Segment& s) {
    const int pieces = pieces_of(s);
    return pieces >= 8 ? 8 : pieces >= 4 ? 4 : pieces >= 2 ? 2 : 1;
}

// The pieces that one warp works through, in order.
struct Cursor {
    int segment, step, piece, half, end, first, tile;

    PS_DEVICE void enter(const Dense& p, int warp) {
        while (segment < p.count) {
            const Segment& s = p.segments[segment];
            const int slices = slices_of(s), together = WARPS / slices, steps = (s.tiles + together - 1) / together;
            if (step < steps) {
                tile = step * together + warp / slices;
                first = pieces_of(s) * (warp % slices) / slices;
                end = pieces_of(s) * (warp % slices + 1) / slices;
                piece = first, half = 0;
                return;
            }
            step -= steps, segment++;
        }
    }
    PS_DEVICE bool done(const Dense& p) const { return segment >= p.count; }
    PS_DEVICE bool empty(const Dense& p) const { return tile >= p.segments[segment].tiles; }
    PS_DEVICE const char* address(const Dense& p, int group) const {
        const Segment& s = p.segments[segment];
        const int pieces = pieces_of(s);
        const size_t index = (static_cast<size_t>(group) * s.tiles + tile) * (pieces << s.paired) + half * pieces + piece;
        return s.weights + index * piece_bytes(s.format);
    }
    // To the next piece; false at the end of the step.
    PS_DEVICE bool next_piece(const Dense& p) {
        if (++piece < end) return true;
        if (p.segments[segment].paired && half == 0) {
            half = 1, piece = first;
            return true;
        }
        return false;
    }
};

template <int SETS>
struct Partial {
    Sums<SETS> sums;
    float halves[SETS][4] = {};
    float plain[4 * SETS][2] = {};
};

template <int SETS>
PS_DEVICE void add_piece(int format, const char* piece, int index, int lane, const char* x, const InputPlan& plan,
                         Partial<SETS>& part) {
    const int column = index * piece_columns(format);
    if (format == F16) return piece_f16<SETS>(piece, lane, x, plan, column, part.halves);
    if (format == BF16) return piece_floats<BF16, 4 * SETS>(piece, lane, x, plan, column, part.plain);
    if (format == F32) return piece_floats<F32, 4 * SETS>(piece, lane, x, plan, column, part.plain);
    const PlaneInputs<SETS> source(x, plan, index, lane);
    const float* scales = reinterpret_cast<const float*>(x + plan.scales_at()) + index * 8 + lane % 4;
    float scale[SETS];
#pragma unroll
    for (int s = 0; s < SETS; s++) scale[s] = 4 * s + lane % 4 < plan.rows ? scales[4 * s] : 0.0f;
    if (format == Q8_0) return cell_q8_0<SETS>(piece, lane, source, scale, part.sums);
    if (format == Q4_K) return cell_q4_k<SETS>(piece, lane, source, scale, part.sums);
    if (format == Q2_K) return cell_q2_k<SETS>(piece, lane, source, scale, part.sums);
    if (format == MXFP4) return cell_mxfp4<SETS>(piece, lane, source, scale, part.sums);
}

// Partial sums of a warp for weight rows g, g + 8 and input rows t, 4 + t → red [input row][16]
template <int SETS>
PS_DEVICE void put_partial(int format, Partial<SETS>& part, float* red, int lane, const char* x, const InputPlan& plan) {
    const int g = lane / 4, t = lane % 4;
    const float* half_scales = reinterpret_cast<const float*>(x + plan.scales_at()) + plan.columns / CELL * 8;
#pragma unroll
    for (int s = 0; s < SETS; s++) {
        const int row = 4 * s + t;
        float a = part.sums.v[s][0], b = part.sums.v[s][1];
        if (format == F16) {
            const float scale = row < plan.rows ? half_scales[row] : 0.0f;
            a = (part.halves[s][0] + part.halves[s][1]) * scale;
            b = (part.halves[s][2] + part.halves[s][3]) * scale;
        }
        if (format == BF16 || format == F32) {
#pragma unroll
            for (int r = 0; r < 4; r++) {
                float v0 = part.plain[4 * s + r][0], v1 = part.plain[4 * s + r][1];
                v0 += __shfl_xor_sync(ALL, v0, 1), v1 += __shfl_xor_sync(ALL, v1, 1);
                v0 += __shfl_xor_sync(ALL, v0, 2), v1 += __shfl_xor_sync(ALL, v1, 2);
                if (r == t) a = v0, b = v1;
            }
        }
        red[row * 16 + g] = a;
        red[row * 16 + g + 8] = b;
    }
    part = Partial<SETS>();
}

template <int SETS>
PS_DEVICE void dense(const Dense& p) {
    extern __shared__ __align__(128) char shared[];
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const int blocks = gridDim.x / p.groups, group = blockIdx.x / blocks;
    u64* bars = reinterpret_cast<u64*>(shared);  // [warps][stages], at most 1 KB
    float* red = reinterpret_cast<float*>(shared + 1024);  // [2 turns][warps][2 halves][4 SETS rows][16]
    constexpr int RED = 2 * 4 * SETS * 16;
    char* rings = shared + 1024 + 2 * WARPS * RED * 4;
    char* x = rings + WARPS * p.stages * p.stage_bytes;
    const InputPlan plan = {p.columns, p.rows, p.forms};

    Ring ring(rings + warp * p.stages * p.stage_bytes, bars + warp * p.stages, p.stages, p.stage_bytes, lane);
    Cursor fill = {0, static_cast<int>(blockIdx.x % blocks), 0, 0, 0, 0, 0};
    fill.enter(p, warp);
    Cursor use = fill;
    auto refill = [&] {  // as many stages as are free
        while (!fill.done(p) && !ring.full()) {
            if (fill.empty(p)) {
                fill.step += blocks;
                fill.enter(p, warp);
                continue;
            }
            if (lane == 0) {
                const u32 bytes = piece_bytes(p.segments[fill.segment].format);
                bulk_copy(ring.to_fill(), fill.address(p, group), bytes, ring.announce(bytes));
            }
            ring.advance_fill();
            if (!fill.next_piece(p)) {
                fill.step += blocks;
                fill.enter(p, warp);
            }
        }
    };
    refill();
    let_next_start();
    wait_for_previous();
    Inputs inputs = p.inputs;
    if (inputs.x) inputs.x += group * inputs.width;
    if (inputs.digits && group) {
        // [rows, all cells, 2, 256]: groups follow each other within a row; only one row can be cut so.
        inputs.digits += static_cast<size_t>(group) * (p.columns / CELL) * 2 * CELL, inputs.scales += group * (p.columns / CELL);
    }
    prepare<WARPS>(inputs, plan, x, red);

    Partial<SETS> part;
    for (int turn = 0; !use.done(p); turn ^= 1) {
        const Segment& s = p.segments[use.segment];
        const int slices = slices_of(s), slice = warp % slices, tile = use.tile;
        float* mine = red + (turn * WARPS + warp) * RED;
        if (!use.empty(p)) {
            for (bool more = true; more;) {
                const char* piece = ring.wait();
                add_piece<SETS>(s.format, piece, use.piece, lane, x, plan, part);
                ring.release();
                const int half = use.half;
                more = use.next_piece(p);
                refill();
                if (use.half != half || !more) put_partial<SETS>(s.format, part, mine + half * 4 * SETS * 16, lane, x, plan);
            }
        }
        if (slices > 1) named_barrier(1 + warp / slices, slices * WARP);
        else __syncwarp();
        // The group's warps take turns at the sums, so that none falls behind.
        if (slice == (use.step / blocks) % slices && tile < s.tiles) {
            const float* first = red + (turn * WARPS + warp - slice) * RED;
            const int row0 = tile * 16;
            for (int i = lane; i < p.rows * 16; i += WARP) {
                float v[2] = {0, 0};
                for (int k = 0; k < slices; k++) {
                    v[0] += first[k * RED + i];
                    if (s.paired) v[1] += first[k * RED + 4 * SETS * 16 + i];
                }
                const float y = s.paired ? swiglu(v[0], v[1], p.limit) : v[0];
                const int row = i / 16, at = row0 + i % 16;
                if (at < s.rows) s.out[static_cast<size_t>(row) * s.stride + static_cast<size_t>(group) * s.rows + at] = y;
            }
            if (p.digits.digits && use.segment == 0) {
                const int total = s.tiles * p.groups, all = group * s.tiles + tile, cell = all / 16;
                if (is_last(p.digits.counters + cell, tiles_of_cell(total, cell), lane))
                    for (int row = 0; row < p.rows; row++) write_digits(p.digits, row, cell, lane);
            }
        }
        const int segment = use.segment;
        use.step += blocks;
        use.enter(p, warp);
        // Other slices, other groups of warps: let nobody write partial sums that the last group still reads.
        if (use.segment != segment) __syncthreads();
    }
}

extern "C" __global__ void __launch_bounds__(256) dense_4(const __grid_constant__ Dense p) { dense<1>(p); }
extern "C" __global__ void __launch_bounds__(256) dense_8(const __grid_constant__ Dense p) { dense<2>(p); }
