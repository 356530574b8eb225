// Products of up to 32 rows of inputs with dense matrices: projections, router, shared expert, head.
//
// Floor: bytes of the weights / memory bandwidth (4.5 TB/s on an H200): q_b, out_a, out_b 35.7 MB, 7.9 µs each; shared gate and
// up 17.8 MB, 4.0 µs; q_a and kv 6.7 MB, 1.5 µs; compressors and indexer of a ratio-4 layer 38 MB, 8.4 µs; head 563 MB, 124 µs.
//
// A tile of 16 rows is cut into slices of columns, as many as it takes to give all warps something to do; its slices are the work
// of neighbouring warps.  A warp streams its pieces through a ring of its own; the first ones are asked for before the kernel waits
// for the one before it.  Partial sums wait in shared memory until the block has a few tiles of them: one barrier for all.
//
// The inputs of many rows would fill a block's shared memory.  Then a cluster of blocks shares them: every block has some of the slices
// of all the cluster's tiles, and so some of the columns, and sends its partial sums to the block that finishes the tile.  Where that
// does not help they stay in memory: a warp reads as much of them as of the weights, but from the caches.
#include "cluster.cuh"
#include "epilogue.cuh"

#ifndef DENSE_WARPS
#define DENSE_WARPS 8
#endif
#ifndef DENSE_LOG_CLUSTER
#define DENSE_LOG_CLUSTER 0
#endif
constexpr int WARPS = DENSE_WARPS, LOG_WARPS = WARPS == 16 ? 4 : 3;
constexpr int LOG_CLUSTER = DENSE_LOG_CLUSTER, CLUSTER = 1 << LOG_CLUSTER;  // at most the slices of any segment
constexpr int SEGMENTS = 8;

// Matrices that see the same inputs; their outputs may be anywhere.
struct Segment {
    const char* weights;  // [groups][tiles][pieces (twice with `paired`)]
    float* out;           // out[row · stride + group · rows + tile row]
    int format, tiles, pieces, piece_bytes, rows, stride;
    int paired;  // gate and up, tile by tile: the output is swiglu(gate, up)
    int log_slices;  // 0 – 3: a tile is the work of 1 – 8 warps

    PS_DEVICE int log_own() const { return log_slices - LOG_CLUSTER; }     // slices of a block
    PS_DEVICE int log_tiles() const { return LOG_WARPS - log_own(); }      // tiles that a block, or a cluster, works at
    PS_DEVICE int tile_of(int warp) const { return warp >> log_own(); }    // one of them
    PS_DEVICE int slice_of(int warp, int rank) const { return (rank << log_own()) + (warp & ((1 << log_own()) - 1)); }
    PS_DEVICE int first_of(int slice) const { return pieces * slice >> log_slices; }
};

struct Dense {
    Segment segments[SEGMENTS];
    Inputs inputs;       // with groups: group g has columns g · width …
    DigitOutput digits;  // of the first segment's output; digits null: none
    int count, groups, rows, columns, forms;
    int stages, stage_bytes, depth;  // depth: tiles of a warp whose partial sums are kept
    int halves;                      // of a partial sum: 2 where a segment is paired
    const char* ahead;  // what the kernel behind this one will read first, so that it is nearer then; or null
    int ahead_bytes;
    int late;  // the next kernel may start only when the one before this has ended: it reads what that one wrote
    float limit;
};

// A warp's place: the round-th time that blocks, or clusters, take some tiles of a segment.
struct Place {
    int segment, round, tile;
    bool valid;

    PS_DEVICE void settle(const Dense& p, int warp) {
#pragma unroll 1
        for (; segment < p.count; segment++) {
            const Segment& s = p.segments[segment];
            const int log = s.log_tiles(), rounds = (s.tiles + (1 << log) - 1) >> log;
            if (round < rounds) {
                tile = (round << log) + s.tile_of(warp);
                valid = tile < s.tiles;
                return;
            }
            round -= rounds;
        }
    }
};

// What is to be streamed next.
struct Filler {
    Place place;
    const char* at;
    int left, bytes;  // pieces of this run
    bool second;      // of a pair

    PS_DEVICE void start(const Dense& p, int group, int warp, int rank, int clusters) {
#pragma unroll 1
        while (place.segment < p.count && !place.valid) {
            place.round += clusters;
            place.settle(p, warp);
        }
        if (place.segment >= p.count) {
            left = 0;
            return;
        }
        const Segment& s = p.segments[place.segment];
        const int slice = s.slice_of(warp, rank), first = s.first_of(slice);
        left = s.first_of(slice + 1) - first;
        bytes = s.piece_bytes;
        second = false;
        const size_t tile = static_cast<size_t>(group) * s.tiles + place.tile;
        at = s.weights + (tile * (s.pieces << s.paired) + first) * bytes;
    }
    // Asks for one piece, if there is one.
    PS_DEVICE void fill(Ring& ring, const Dense& p, int group, int warp, int rank, int lane, int clusters) {
        if (left == 0) return;
        ring.fill(at, bytes, lane);
        at += bytes;
        if (--left) return;
        const Segment& s = p.segments[place.segment];
        if (s.paired && !second) {
            const int slice = s.slice_of(warp, rank);
            left = s.first_of(slice + 1) - s.first_of(slice);
            at += static_cast<size_t>(s.pieces - left) * bytes;
            second = true;
        } else {
            place.round += clusters;
            place.settle(p, warp);
            start(p, group, warp, rank, clusters);
        }
    }
};

// One run of pieces: sums for weight rows g, g + 8 and input rows t, 4 + t, … → v.  first, end: counted from the block's first column
template <int FORMAT, int SETS, class Refill>
PS_DEVICE void run(int first, int end, Ring& ring, int lane, const char* x, const InputPlan& plan, float (&v)[SETS][2],
                   const Refill& refill) {
    const int t = lane % 4;
    auto scale_of = [&](int set, int cell) {  // cell: behind the last is the halves'
        const int row = set % 2 * 4 + t;
        const float* scales = reinterpret_cast<const float*>(x + set / 2 * plan.piece() + plan.scales_at());
        return row < plan.rows ? scales[cell * PIECE + row] : 0.0f;
    };
    if constexpr (FORMAT == F16 || FORMAT == FP8) {
#pragma unroll 1
        for (int i = first; i < end; i++) {
            if constexpr (FORMAT == F16) piece_f16<SETS>(ring.wait(), lane, x, plan, i * piece_columns(F16), v);
            else cell_fp8<SETS>(ring.wait(), lane, x, plan, i * CELL, v);
            ring.release();
            refill();
        }
#pragma unroll
        for (int s = 0; s < SETS; s++) {
            const float scale = scale_of(s, plan.columns / CELL);
            v[s][0] *= scale, v[s][1] *= scale;
        }
    } else if constexpr (FORMAT == BF16 || FORMAT == F32) {
        float c[4 * SETS][2] = {};
#pragma unroll 1
        for (int i = first; i < end; i++) {
            piece_floats<FORMAT, 4 * SETS>(ring.wait(), lane, x, plan, i * piece_columns(FORMAT), c);
            ring.release();
            refill();
        }
#pragma unroll
        for (int r = 0; r < 4 * SETS; r++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                float sum = c[r][h];
                sum += __shfl_xor_sync(ALL, sum, 1);
                sum += __shfl_xor_sync(ALL, sum, 2);
                if (r % 4 == t) v[r / 4][h] = sum;
            }
    } else {
        Sums<SETS> sums;
#pragma unroll 1
        for (int i = first; i < end; i++) {
            const PlaneInputs<SETS> source(x, plan, i, lane);
            float scale[SETS];
#pragma unroll
            for (int s = 0; s < SETS; s++) scale[s] = scale_of(s, i);
            const char* piece = ring.wait();
            if constexpr (FORMAT == Q8_0) cell_q8_0<SETS>(piece, lane, source, scale, sums);
            if constexpr (FORMAT == Q4_K) cell_q4_k<SETS>(piece, lane, source, scale, sums);
            if constexpr (FORMAT == Q2_K) cell_q2_k<SETS>(piece, lane, source, scale, sums);
            if constexpr (FORMAT == MXFP4) cell_mxfp4<SETS>(piece, lane, source, scale, sums);
            if constexpr (FORMAT == Q6_K) cell_q6_k<SETS>(piece, lane, source, scale, sums);
            ring.release();
            refill();
        }
#pragma unroll
        for (int s = 0; s < SETS; s++) v[s][0] = sums.v[s][0], v[s][1] = sums.v[s][1];
    }
}

template <int SETS, int FORMATS, Source SOURCE>
PS_DEVICE void products(const Dense& p) {
    extern __shared__ __align__(128) char shared[];
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    const int rank = CLUSTER > 1 ? cluster_rank() : 0, clusters = gridDim.x / CLUSTER / p.groups;  // of a group
    const int number = blockIdx.x / CLUSTER, group = number / clusters;
    u64* bars = reinterpret_cast<u64*>(shared);            // [warps][stages], at most 1 KB
    u64 *image_bar = bars + 127, *sums_bar = bars + 126;
    float* scratch = reinterpret_cast<float*>(shared + 1024);
    float* red = scratch + SCRATCH_FLOATS;                 // [tiles][slices][gate, up][rows][8][2]: weight rows g and g + 8
    const int part = p.halves * p.rows * 16;
    char* rings = reinterpret_cast<char*>(red + p.depth * WARPS * part);
    char* x = rings + WARPS * p.stages * p.stage_bytes;    // [pieces of rows], of the block's columns
    InputPlan plan = {p.columns >> LOG_CLUSTER, min(p.rows, PIECE), p.forms};
    if constexpr (SOURCE == MEMORY) {
        plan = {p.columns, min(p.rows, PIECE), p.inputs.image_forms, p.inputs.piece_bytes};
        x = const_cast<char*>(p.inputs.image) + static_cast<size_t>(group) * plan.bytes();
    }

    if (threadIdx.x == 0) barrier_init(image_bar, block_copiers().arrivals()), barrier_init(sums_bar, 1), barrier_init_visible();
    if (CLUSTER > 1) cluster_arrive_relaxed();
    __syncthreads();
    Ring ring(rings + warp * p.stages * p.stage_bytes, bars + warp * p.stages, p.stages, p.stage_bytes, lane);
    Filler filler = {{0, number - group * clusters, 0, false}, nullptr, 0, 0, false};
    filler.place.settle(p, warp);
    Place use = filler.place;
    filler.start(p, group, warp, rank, clusters);
    auto refill = [&] { filler.fill(ring, p, group, warp, rank, lane, clusters); };
#pragma unroll 1
    for (int i = 0; i < p.stages; i++) refill();
    if (!p.late) let_next_start();
    fetch_ahead(p.ahead, p.ahead_bytes);
    if constexpr (SOURCE == ROWS) {
        Inputs inputs = p.inputs;
        inputs.x += group * inputs.width;
        prepare<WARPS>(inputs, plan, x, scratch, [&] {
            wait_for_previous();
            if (p.late) let_next_start();
        });
    } else {
        wait_for_previous();
        if (p.late) let_next_start();
        if constexpr (SOURCE == IMAGE) {
            if constexpr (CLUSTER > 1 || SETS > 2) {
                if (!BULK || warp == 0) fetch_columns(p.inputs, plan, x, (SETS + 1) / 2, group, rank, CLUSTER, image_bar, lane);
            } else {
                fetch_image(p.inputs, plan, x, group, image_bar);
            }
            barrier_wait(image_bar, 0);
        }
    }
    if (CLUSTER > 1) cluster_wait();  // all blocks have begun, and have their barriers

    u32 phase = 0;
#pragma unroll 1
    while (use.segment < p.count) {
        // As many rounds of this segment as partial sums can be kept for.
        const Segment& s = p.segments[use.segment];
        const int segment = use.segment, first_round = use.round, slice = s.slice_of(warp, rank), log = s.log_tiles();
        const int before = s.first_of(rank << s.log_own()), first = s.first_of(slice) - before, end = s.first_of(slice + 1) - before;
        const bool counted = p.digits.digits && segment == 0;
        const bool direct = s.log_slices == 0 && !s.paired && !counted;
        int kept = 0;
#pragma unroll 1
        for (; use.segment == segment && kept < p.depth; kept++) {
            if (use.valid) {
                const int tile = (kept << log) + s.tile_of(warp);  // of the tiles whose sums are kept
                float* to = red + (((tile >> LOG_CLUSTER) << s.log_slices) + slice) * part;
                const u32 there = CLUSTER > 1 ? shared_of(to, tile & (CLUSTER - 1)) : 0;
                const u32 bar = CLUSTER > 1 ? shared_of(sums_bar, tile & (CLUSTER - 1)) : 0;
#pragma unroll 1
                for (int half = 0; half <= s.paired; half++) {
                    float v[SETS][2] = {};
                    auto try_format = [&](auto format) {
                        constexpr int F = decltype(format)::value;
                        if constexpr (FORMATS >> F & 1) {
                            if (FORMATS == 1 << F || s.format == F)
                                run<F, SETS>(first, end, ring, lane, x, plan, v, refill);
                        }
                    };
                    try_format(Constant<Q8_0>());
                    try_format(Constant<F16>());
                    try_format(Constant<Q2_K>());
                    try_format(Constant<Q4_K>());
                    try_format(Constant<MXFP4>());
                    try_format(Constant<BF16>());
                    try_format(Constant<F32>());
                    try_format(Constant<Q6_K>());
                    try_format(Constant<FP8>());
#pragma unroll
                    for (int k = 0; k < SETS; k++) {
                        const int row = 4 * k + t, at = (half * p.rows + row) * 16 + 2 * g;
                        if (row >= p.rows) continue;
                        if (direct) {
                            float* out = s.out + static_cast<size_t>(row) * s.stride + group * s.rows;
                            const int i = use.tile * 16 + g;
                            if (i < s.rows) out[i] = v[k][0];
                            if (i + 8 < s.rows) out[i + 8] = v[k][1];
                        } else if (CLUSTER > 1) {
                            send(there + at * 4, float2{v[k][0], v[k][1]}, bar);
                        } else {
                            *reinterpret_cast<float2*>(to + at) = {v[k][0], v[k][1]};
                        }
                    }
                }
            }
            use.round += clusters;
            use.settle(p, warp);
        }
        if (direct) continue;
        // Tiles that this block finishes: every CLUSTER-th.
        const int tiles = kept << log;
        auto tile_at = [&](int i) {
            const int tile = (i << LOG_CLUSTER) + rank, round = tile >> log;
            return ((first_round + round * clusters) << log) + tile - (round << log);
        };
        const int own = (tiles - rank + CLUSTER - 1) >> LOG_CLUSTER;
        if (CLUSTER > 1) {
            if (threadIdx.x == 0) {
                int there = 0;  // that exist
                for (int i = 0; i < own; i++) there += tile_at(i) < s.tiles;
                barrier_expect(sums_bar, (there << s.log_slices) * (1 + s.paired) * p.rows * 16 * sizeof(float));
            }
            barrier_wait(sums_bar, phase);
            phase ^= 1;
        } else {
            __syncthreads();
        }
#pragma unroll 1
        for (int i = warp; i < own; i += WARPS) {  // a tile for every warp
            const int tile = tile_at(i);
            if (tile >= s.tiles) continue;
            const float* parts = red + (i << s.log_slices) * part;
#pragma unroll 1
            for (int k = lane; k < p.rows * 16; k += WARP) {
                float a = 0, b = 0;
#pragma unroll 2
                for (int j = 0; j < 1 << s.log_slices; j++) {
                    a += parts[j * part + k];
                    if (s.paired) b += parts[j * part + p.rows * 16 + k];
                }
                const int at = tile * 16 + k % 16 / 2 + k % 2 * 8;
                if (at < s.rows)
                    s.out[static_cast<size_t>(k / 16) * s.stride + group * s.rows + at] = s.paired ? swiglu(a, b, p.limit) : a;
            }
            if (counted) {
                const int cell = (group * s.tiles + tile) / 16;
                if (is_last(p.digits.counters + cell, tiles_of_cell(s.tiles * p.groups, cell), lane))
#pragma unroll 1
                    for (int row = 0; row < p.rows; row++) write_digits(p.digits, row, cell, lane);
            }
        }
        if (use.segment == p.count) break;
        if (CLUSTER > 1) cluster_arrive_relaxed(), cluster_wait();  // nobody sends before this block has read
        else __syncthreads();
    }
}

#ifdef DENSE_FORMATS  // one mix of formats, one source of inputs: every other instruction would be in the way
// Blocks of a multiprocessor: as many as make sixteen warps; of inputs in memory one alone, whose many rows take the registers.
constexpr int BLOCKS = DENSE_SOURCE == MEMORY ? 1 : 16 / WARPS;
extern "C" __global__ void __launch_bounds__(WARPS * 32, BLOCKS) dense(const __grid_constant__ Dense p) {
    products<DENSE_SETS, DENSE_FORMATS, DENSE_SOURCE>(p);
}
#endif
