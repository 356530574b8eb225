// Hyper-connections: four streams, mixed into a sublayer's input and out of its output (spec §3.2, §3.3, §3.13).
//
// Floor: the mixing matrix, 24 × 16384 halfs = 786 KB, and the streams, 64 KB a row in and out: 0.2 µs at 4.5 TB/s.  What counts is
// the chain: leaving a sublayer, a sum over the row, the coefficients, another sum over the row, the input's digits.  A cluster of
// blocks does all of it for a row; the sums go through each other's shared memory, and the new streams stay where they were made.
#include "cluster.cuh"
#include "columns.cuh"
#include "sinkhorn.cuh"

struct LeaveAndEnter {
    const float* streams;  // [rows, 4, hidden], before the sublayer; or null: embeddings
    const u16* embeddings;  // [vocabulary, hidden] F16
    const int* tokens;      // [rows]
    const float* y;        // [rows, hidden]: the sublayer's output, or null
    const float* before;   // [rows, 24]: pre 4, post 4, comb 16 of the streams, as this kernel wrote them for `streams`
    float* out;            // [rows, 4, hidden]
    const void* fn;        // [outs, 4 · hidden], F16 or F32
    const float *base, *scale;  // [24], [3]; for the head [4], [1]
    float* coefficients;   // [rows, 24], of `out`
    const float* norm;     // [hidden] or null
    char* image;           // of the normed input, InputPlan {columns, rows of a piece, forms}
    float* x;              // [rows, hidden] before the norm, or null
    int outs, rows, hidden, columns, forms, iterations;  // outs: 24; for the head 4
    float eps, hc_eps;
};

constexpr int WARPS = 8, MAX_CELLS = 32, OWN_CELLS = 4;  // of the row, of a block; a thread a column
constexpr int HALF_CELL = 144;                           // numbers of a cell, four and four apart: lanes read eight without conflicts
constexpr int PARTS_STRIDE = MAX_CELLS + 4;

PS_DEVICE int place_in_cell(int i) { return (i >> 2 & 1) * HALF_CELL + (i >> 3) * 4 + (i & 3); }

PS_DEVICE float number(const uint4 (&w)[1], int i) {  // the i-th of eight
    const u32 words[4] = {w[0].x, w[0].y, w[0].z, w[0].w};
    return i % 2 ? high_half(words[i / 2]) : low_half(words[i / 2]);
}
PS_DEVICE float number(const uint4 (&w)[2], int i) {
    const u32 words[4] = {w[i / 4].x, w[i / 4].y, w[i / 4].z, w[i / 4].w};
    return bits_float(words[i % 4]);
}

// The numbers of a row that all its blocks need: every block has them all.
struct RowSums {
    float parts[MIX + 1][PARTS_STRIDE];  // of every cell: 24 products, squares
    float2 norms[MAX_CELLS][WARPS];      // of every cell and warp: squares of the input, its largest number with the norm's weight
};

// grid: (cluster, rows).  Block r of a cluster has cells r, r + cluster, … of 256 channels with all four streams; its ninth warp adds
// the squares and, in the first block, balances the matrix while the others collapse the streams.  WORDS: 16 bytes
// each, that eight numbers of `fn` take: 1 for F16, 2 for F32.
template <int WORDS>
PS_DEVICE void leave_and_enter(const LeaveAndEnter& p) {
    __shared__ __align__(16) float xs[OWN_CELLS][STREAMS + 1][2 * HALF_CELL];  // new streams; weights of the norm, then the input
    __shared__ __align__(16) RowSums sums;
    __shared__ float balanced[PARTIAL];
    __shared__ u64 bars[2];  // all parts, all norms have come
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, row = blockIdx.y, cells = p.columns / CELL;
    const int rank = cluster_rank(), blocks = cluster_size(), place = place_in_cell(threadIdx.x % CELL);
    const size_t total = static_cast<size_t>(STREAMS) * p.hidden;
    if (threadIdx.x <= MIX)
        for (int cell = cells; cell % 4; cell++) sums.parts[threadIdx.x][cell] = 0;
    if (threadIdx.x == 0) {
        barrier_init(bars, 1), barrier_init(bars + 1, 1), barrier_init_visible();
        barrier_expect(bars, cells * (MIX + 1) * sizeof(float)), barrier_expect(bars + 1, cells * WARPS * sizeof(float2));
    }
    cluster_arrive_relaxed();
    uint4 fn[3][STREAMS][WORDS];  // outs warp, warp + 8, warp + 16, columns 8 lane … of a cell: weights do not wait
    auto load_fn = [&](int cell) {
#pragma unroll
        for (int k = 0; k < 3; k++)
#pragma unroll
            for (int j = 0; j < STREAMS; j++) {
                const int o = warp + 8 * k, column = cell * CELL + lane * 8;
                const char* from = static_cast<const char*>(p.fn) + (o * total + j * p.hidden + column) * (2 * WORDS);
#pragma unroll
                for (int w = 0; w < WORDS; w++)
                    fn[k][j][w] = warp < WARPS && o < p.outs && column < p.hidden ? load16(from + 16 * w) : uint4{0, 0, 0, 0};
            }
    };
    load_fn(rank);
    const int group = lane < 4 ? 0 : lane < 8 ? 1 : 2;
    const float base = lane < p.outs ? p.base[lane] : 0.0f, scale = lane < p.outs ? p.scale[group] : 0.0f;
    const float each = 1.0f / static_cast<float>(total);
    const int column = rank * CELL + threadIdx.x;
    if (p.streams && threadIdx.x < CELL && column < p.hidden) {
#pragma unroll
        for (int j = 0; j < STREAMS; j++) prefetch(p.streams + row * total + j * p.hidden + column);
    }
    const u32 bar = shared_of(bars, lane % blocks);  // of the block that this lane sends to
    cluster_wait();                                  // all blocks have begun
    wait_for_previous();
    int own = 0;
#pragma unroll 1
    for (int cell = rank; cell < cells; cell += blocks, own++) {
        const int d = cell * CELL + threadIdx.x;
        if (threadIdx.x < CELL) {
            float v[STREAMS] = {}, norm = 1;
            if (d < p.hidden) {
                if (p.norm) norm = p.norm[d];
                if (!p.streams) {
                    const float e = half_to_float(p.embeddings[static_cast<size_t>(p.tokens[row]) * p.hidden + d]);
#pragma unroll
                    for (int j = 0; j < STREAMS; j++) v[j] = e;
                } else {
                    float s[STREAMS];
#pragma unroll
                    for (int j = 0; j < STREAMS; j++) s[j] = p.streams[row * total + j * p.hidden + d];
                    if (p.y) {
                        const float y = p.y[static_cast<size_t>(row) * p.hidden + d];
                        const float4* c = reinterpret_cast<const float4*>(p.before + row * MIX);
                        const float4 post = c[1];
                        v[0] = post.x * y, v[1] = post.y * y, v[2] = post.z * y, v[3] = post.w * y;
#pragma unroll
                        for (int i = 0; i < STREAMS; i++) {
                            const float4 comb = c[2 + i];
                            v[0] = fmaf(comb.x, s[i], v[0]), v[1] = fmaf(comb.y, s[i], v[1]);
                            v[2] = fmaf(comb.z, s[i], v[2]), v[3] = fmaf(comb.w, s[i], v[3]);
                        }
                    } else {
#pragma unroll
                        for (int j = 0; j < STREAMS; j++) v[j] = s[j];
                    }
                }
#pragma unroll
                for (int j = 0; j < STREAMS; j++) p.out[row * total + j * p.hidden + d] = v[j];
            }
#pragma unroll
            for (int j = 0; j < STREAMS; j++) xs[own][j][place] = v[j];
            xs[own][STREAMS][place] = norm;
        }
        __syncthreads();
        if (own == 0) let_next_start();  // only now: the weights that it will ask for must not stand before what this kernel waits for
        if (own) load_fn(cell);
        float products[3] = {};  // the ninth warp's first: squares
#pragma unroll
        for (int j = 0; j < STREAMS; j++) {
            const float4 a = *reinterpret_cast<const float4*>(&xs[own][j][lane * 4]);
            const float4 b = *reinterpret_cast<const float4*>(&xs[own][j][HALF_CELL + lane * 4]);
            const float v[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
            if (warp < WARPS) {
#pragma unroll
                for (int i = 0; i < 8; i++)
#pragma unroll
                    for (int k = 0; k < 3; k++) products[k] = fmaf(number(fn[k][j], i), v[i], products[k]);
            } else {
#pragma unroll
                for (int i = 0; i < 8; i++) products[0] = fmaf(v[i], v[i], products[0]);
            }
        }
#pragma unroll
        for (int k = 0; k < 3; k++) {
            const float sum = warp_sum(products[k]);
            const int o = warp < WARPS ? warp + 8 * k : MIX;
            if (lane < blocks && (k == 0 || warp < WARPS)) send(shared_of(&sums.parts[o][cell], lane), sum, bar);
        }
    }
    barrier_wait(bars, 0);
    // Every warp works out the coefficients: pre 0 – 3, post 4 – 7, logits of comb 8 – 23.
    float mix = 0;
#pragma unroll 4
    for (int cell = 0; cell < cells; cell += 4) {
        const float4 part = *reinterpret_cast<const float4*>(&sums.parts[min(lane, MIX)][cell]);
        mix += (part.x + part.y) + (part.z + part.w);
    }
    const float factor = inverse_root(__shfl_sync(ALL, mix, MIX) * each + p.eps);
    float coefficient = mix * factor * scale + base;
    if (group < 2) coefficient = sigmoid(coefficient) * (group ? 2.0f : 1.0f) + (group ? 0.0f : p.hc_eps);
    if (warp == WARPS) {
        if (rank) return;
        float* out = p.coefficients + row * MIX;
        if (lane < min(p.outs, 8)) out[lane] = coefficient;
        const float logit = __shfl_sync(ALL, coefficient, (lane & 15) + 8);
        if (p.outs == MIX) sinkhorn(logit, p.iterations, p.hc_eps, lane, balanced, out + 8);
        return;
    }
    float pre[STREAMS];
#pragma unroll
    for (int j = 0; j < STREAMS; j++) pre[j] = __shfl_sync(ALL, coefficient, j);
#pragma unroll 1
    for (int cell = rank, k = 0; cell < cells; cell += blocks, k++) {
        const int d = cell * CELL + threadIdx.x;
        float x = 0;
#pragma unroll
        for (int j = 0; j < STREAMS; j++) x = fmaf(pre[j], xs[k][j][place], x);
        if (p.x && d < p.hidden) p.x[static_cast<size_t>(row) * p.hidden + d] = x;
        const float normed = x * xs[k][STREAMS][place], squares = warp_sum(x * x), largest = warp_largest(fabsf(normed));
        xs[k][STREAMS][place] = normed;
        if (lane < blocks) send(shared_of(&sums.norms[cell][warp], lane), float2{squares, largest}, bar + sizeof(u64));
    }
    barrier_wait(bars + 1, 0);
    float squares = 0, largest = 0;
#pragma unroll 4
    for (int i = lane; i < cells * WARPS; i += WARP) {
        const float2 part = (&sums.norms[0][0])[i];
        squares += part.x, largest = fmaxf(largest, part.y);
    }
    const RowScale whole = whole_row(warp_sum(squares) * (each * STREAMS), warp_largest(largest), p.norm, p.eps);
    const InputPlan plan = {p.columns, min(p.rows, PIECE), p.forms};
    char* image = p.image + static_cast<size_t>(row / PIECE) * plan.bytes();
    const int in_piece = row % PIECE;
    if (p.forms & HALVES && rank == 0 && threadIdx.x == 0)
        reinterpret_cast<float*>(image + plan.scales_at())[cells * 8 + in_piece] = whole.down;
#pragma unroll 1
    for (int cell = rank, k = 0; cell < cells; cell += blocks, k++) {
        float most = 0;
#pragma unroll
        for (int w = 0; w < WARPS; w++) most = fmaxf(most, sums.norms[cell][w].y);
        store_column(plan, image, in_piece, cell * CELL + threadIdx.x, xs[k][STREAMS][place] * whole.factor, most * whole.factor, whole.up);
    }
}

constexpr int THREADS = (WARPS + 1) * WARP;
#if BULK
extern "C" __global__ void __launch_bounds__(THREADS) leave_and_enter_f16(const __grid_constant__ LeaveAndEnter p) { leave_and_enter<1>(p); }
extern "C" __global__ void __launch_bounds__(THREADS) leave_and_enter_f32(const __grid_constant__ LeaveAndEnter p) { leave_and_enter<2>(p); }
#endif

// Without clusters the sums go through memory: one kernel leaves the sublayer and makes the products of every cell, a second one adds them up
// and collapses the streams, and `make_image` has the rest.
struct LeaveApart {
    float* streams;    // [rows, 4, hidden], in place
    const float* y;    // [rows, hidden]: the sublayer's output, or null
    const float* mix;  // [rows, 24], of the streams before it
    const void* fn;    // [outs, 4 · hidden], F16 or F32
    float* parts;      // [rows, MIX + 1, cells]
    int outs, hidden;
};

// grid: (cells, rows).  A warp has outs warp, warp + 8, …; the sum of squares is the last of 25.
template <int WORDS>
PS_DEVICE void leave_apart(const LeaveApart& p) {
    __shared__ __align__(16) float xs[STREAMS][2 * HALF_CELL];
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, cell = blockIdx.x, row = blockIdx.y, d = cell * CELL + threadIdx.x;
    const size_t total = static_cast<size_t>(STREAMS) * p.hidden;
    let_next_start();
    wait_for_previous();
    float v[STREAMS] = {};
    if (d < p.hidden) {
        float* at = p.streams + row * total + d;
        float s[STREAMS];
#pragma unroll
        for (int j = 0; j < STREAMS; j++) v[j] = s[j] = at[j * p.hidden];
        if (p.y) {
            const float y = p.y[static_cast<size_t>(row) * p.hidden + d];
            const float *post = p.mix + row * MIX + STREAMS, *comb = post + STREAMS;
#pragma unroll
            for (int j = 0; j < STREAMS; j++) {
                v[j] = post[j] * y;
#pragma unroll
                for (int i = 0; i < STREAMS; i++) v[j] = fmaf(comb[i * STREAMS + j], s[i], v[j]);
                at[j * p.hidden] = v[j];
            }
        }
    }
#pragma unroll
    for (int j = 0; j < STREAMS; j++) xs[j][place_in_cell(threadIdx.x)] = v[j];
    __syncthreads();
    const int column = cell * CELL + lane * 8;
#pragma unroll 1
    for (int o = warp; o <= MIX; o += WARPS) {
        if (o >= p.outs && o < MIX) continue;
        float sum = 0;
#pragma unroll
        for (int j = 0; j < STREAMS; j++) {
            const float4 a = *reinterpret_cast<const float4*>(&xs[j][lane * 4]), b = *reinterpret_cast<const float4*>(&xs[j][HALF_CELL + lane * 4]);
            const float x[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
            uint4 fn[WORDS] = {};
            if (o < MIX && column < p.hidden) {
                const char* from = static_cast<const char*>(p.fn) + (o * total + j * p.hidden + column) * (2 * WORDS);
#pragma unroll
                for (int w = 0; w < WORDS; w++) fn[w] = load16(from + 16 * w);
            }
#pragma unroll
            for (int i = 0; i < 8; i++) sum = fmaf(o < MIX ? number(fn, i) : x[i], x[i], sum);
        }
        sum = warp_sum(sum);
        if (lane == 0) p.parts[(static_cast<size_t>(row) * (MIX + 1) + o) * gridDim.x + cell] = sum;
    }
}
extern "C" __global__ void __launch_bounds__(CELL) leave_apart_f16(const __grid_constant__ LeaveApart p) { leave_apart<1>(p); }
extern "C" __global__ void __launch_bounds__(CELL) leave_apart_f32(const __grid_constant__ LeaveApart p) { leave_apart<2>(p); }

struct CollapseApart {
    const float *streams, *parts;
    const float *base, *scale;  // as of `LeaveAndEnter`
    float* mix;                 // [rows, 24]
    float* x;                   // [rows, x_stride]: what the streams collapse to, before its norm
    int outs, hidden, x_stride, iterations;
    float eps, hc_eps;
};

// grid: (cells, rows).  Every warp works out the coefficients: pre 0 – 3, post 4 – 7, logits of comb 8 – 23.  The ninth of the first block
// balances the matrix.
extern "C" __global__ void __launch_bounds__(THREADS) collapse_apart(const __grid_constant__ CollapseApart p) {
    __shared__ float balanced[PARTIAL];
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, row = blockIdx.y, cells = gridDim.x, d = blockIdx.x * CELL + threadIdx.x;
    const int group = lane < 4 ? 0 : lane < 8 ? 1 : 2;
    let_next_start();
    wait_for_previous();
    float sum = 0;
    if (lane < p.outs || lane == MIX) {
        const float* parts = p.parts + (static_cast<size_t>(row) * (MIX + 1) + lane) * cells;
#pragma unroll 8
        for (int cell = 0; cell < cells; cell++) sum += parts[cell];
    }
    const float factor = inverse_root(__shfl_sync(ALL, sum, MIX) / (static_cast<float>(STREAMS) * static_cast<float>(p.hidden)) + p.eps);
    float coefficient = lane < p.outs ? fmaf(sum * factor, p.scale[group], p.base[lane]) : 0.0f;
    if (group < 2) coefficient = sigmoid(coefficient) * (group ? 2.0f : 1.0f) + (group ? 0.0f : p.hc_eps);
    if (warp == WARPS) {
        if (blockIdx.x) return;
        float* mix = p.mix + row * MIX;
        if (lane < min(p.outs, 8)) mix[lane] = coefficient;
        const float logit = __shfl_sync(ALL, coefficient, (lane & 15) + 8);
        if (p.outs == MIX) sinkhorn(logit, p.iterations, p.hc_eps, lane, balanced, mix + 8);
        return;
    }
    float x = 0;
#pragma unroll
    for (int j = 0; j < STREAMS; j++) {
        const float pre = __shfl_sync(ALL, coefficient, j);
        if (d < p.hidden) x = fmaf(pre, p.streams[(static_cast<size_t>(row) * STREAMS + j) * p.hidden + d], x);
    }
    if (d < p.hidden) p.x[static_cast<size_t>(row) * p.x_stride + d] = x;
}

struct MakeImage {
    Inputs inputs;
    char* image;
    int rows, columns, forms;
};

// Inputs as products want them, made once for several products.  One block a row.
extern "C" __global__ void __launch_bounds__(256) make_image(const __grid_constant__ MakeImage p) {
    __shared__ float squares[64], largest[64];
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, row = blockIdx.x, cells = p.columns / CELL;
    let_next_start();
    wait_for_previous();
    for (int cell = warp; cell < cells; cell += 8) {
        float v[8];
        load_cell(p.inputs, row, cell, lane, v);
        const float sum = warp_sum(squares_of(v));
        if (p.inputs.norm) multiply_cell(p.inputs, cell, lane, v);
        const float most = largest_of(v);
        if (lane == 0) squares[cell] = sum, largest[cell] = most;
    }
    __syncthreads();
    const InputPlan plan = {p.columns, min(p.rows, PIECE), p.forms};
    char* image = p.image + static_cast<size_t>(row / PIECE) * plan.bytes();
    const int in_piece = row % PIECE;
    const RowScale scale = row_scale(squares, largest, cells, p.inputs.width, p.inputs.norm, p.inputs.eps, lane);
    if (p.forms & HALVES && threadIdx.x == 0)
        reinterpret_cast<float*>(image + plan.scales_at())[cells * 8 + in_piece] = scale.down;
    for (int cell = warp; cell < cells; cell += 8) {
        float v[8];
        load_cell(p.inputs, row, cell, lane, v);
        if (p.inputs.norm) multiply_cell(p.inputs, cell, lane, v);
        if (p.forms & DIGITS) {  // as `prepare` does it: the norm goes into their scale
            const Digits d = to_digits(v, largest[cell]);
            store_digits(image, plan, in_piece, cell, lane, {d.high, d.low, d.scale * scale.factor});
        }
#pragma unroll
        for (int e = 0; e < 8; e++) v[e] *= scale.factor;
        store_floating(plan, image, in_piece, cell, lane, v, scale.up);
    }
}
