// Hyper-connections: four streams, mixed into a sublayer's input and out of its output (spec §3.2, §3.3, §3.13).
//
// Floor: the mixing matrix, 24 × 16384 halfs = 786 KB, and the streams, 64 KB a row in and out: 0.2 µs at 4.5 TB/s.  What counts is
// the chain of two small kernels: `leave_and_mix` spreads over 64 blocks, `collapse` is one block a row.
#include "formats.cuh"
#include "sinkhorn.cuh"

struct Leave {
    const float* streams;  // [rows, 4, hidden], before the sublayer; or null: embeddings
    const u16* embeddings;  // [vocabulary, hidden] F16
    const int* tokens;      // [rows]
    const float* y;        // [rows, hidden]: the sublayer's output, or null
    const float* coefficients;  // [rows, 24]: pre 4, post 4, comb 16 of the streams, as `collapse` wrote them
    float* out;            // [rows, 4, hidden]
    const void* fn;        // [outs, 4 · hidden], F16 or F32
    float* partial;        // [blocks, rows, 32]
    int fn_is_f32, outs, rows, hidden;
};

// Block b has columns 256 b … of the flattened streams: leaves the sublayer there, and begins the products of the next mix.
extern "C" __global__ void __launch_bounds__(256) leave_and_mix(const __grid_constant__ Leave p) {
    __shared__ __align__(16) float xs[8][CELL];
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, total = STREAMS * p.hidden;
    const int column = blockIdx.x * CELL + threadIdx.x, j = column / p.hidden, d = column % p.hidden;
    let_next_start();
    float fn[3][8];  // outs warp, warp + 8, warp + 16: weights do not wait
#pragma unroll
    for (int k = 0; k < 3; k++)
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const int out = warp + 8 * k, c = blockIdx.x * CELL + lane * 8 + i;
            const size_t at = static_cast<size_t>(out) * total + c;
            fn[k][i] = out >= p.outs || c >= total ? 0.0f
                       : p.fn_is_f32               ? static_cast<const float*>(p.fn)[at]
                                                   : half_to_float(static_cast<const u16*>(p.fn)[at]);
        }
    wait_for_previous();
    for (int row = 0; row < p.rows; row++) {
        float v = 0;
        if (column < total) {
            const size_t base = static_cast<size_t>(row) * total;
            if (!p.streams) {
                v = half_to_float(p.embeddings[static_cast<size_t>(p.tokens[row]) * p.hidden + d]);
            } else if (!p.y) {
                v = p.streams[base + column];
            } else {
                const float* c = p.coefficients + row * MIX;
                v = c[4 + j] * p.y[static_cast<size_t>(row) * p.hidden + d];
#pragma unroll
                for (int i = 0; i < STREAMS; i++) v = fmaf(c[8 + 4 * i + j], p.streams[base + i * p.hidden + d], v);
            }
            p.out[base + column] = v;
        }
        xs[row][threadIdx.x] = v;
    }
    __syncthreads();
    for (int row = 0; row < p.rows; row++) {
        float v[8], squares = 0, sums[3] = {};
        load_eight(xs[row], lane * 8, CELL, v);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            squares = fmaf(v[i], v[i], squares);
#pragma unroll
            for (int k = 0; k < 3; k++) sums[k] = fmaf(fn[k][i], v[i], sums[k]);
        }
        float* to = p.partial + (static_cast<size_t>(blockIdx.x) * p.rows + row) * PARTIAL;
#pragma unroll
        for (int k = 0; k < 3; k++) {
            const float sum = warp_sum(sums[k]);
            if (lane == 0) to[warp + 8 * k] = sum;
        }
        if (warp == 0) {
            squares = warp_sum(squares);
            if (lane == 0) to[MIX] = squares;
        }
    }
}

struct Collapse {
    const float* streams;  // [rows, 4, hidden]
    const float* partial;  // [blocks, at least rows, 32]
    const float *base, *scale;  // [24], [3]; for the head [4], [1]
    float* coefficients;   // [rows, 24]
    const float* norm;     // [hidden] or null
    char* image;           // of the normed input, InputPlan {columns, rows, forms}
    float* x;              // [rows, hidden] before the norm, or null
    int blocks, partial_stride, rows, hidden, columns, forms, head, iterations;
    float eps, hc_eps;
};

constexpr int COLLAPSE_WARPS = 16, MAX_CELLS = 32;

// One block a row; the seventeenth warp balances the matrix while the others collapse the streams.  Little code on purpose: every
// instruction is run once, and fetching it is what takes time.
extern "C" __global__ void __launch_bounds__(COLLAPSE_WARPS * 32 + 32) collapse(const __grid_constant__ Collapse p) {
    __shared__ float mix[PARTIAL], coefficients[PARTIAL], squares[MAX_CELLS], largest[MAX_CELLS];
    __shared__ __align__(16) float xs[MAX_CELLS * CELL];
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, row = blockIdx.x, cells = p.columns / CELL;
    let_next_start();
    wait_for_previous();
    const float* streams = p.streams + static_cast<size_t>(row) * STREAMS * p.hidden;
    {  // sums of the mix: a warp has number warp and, of the last ones, warp + 17; both are loaded at once
        const int second = warp + COLLAPSE_WARPS + 1;
        float sums[2] = {0, 0};
#pragma unroll 2
        for (int b = lane; b < p.blocks; b += WARP) {
            const float* from = p.partial + static_cast<size_t>(b) * p.partial_stride + row * PARTIAL;
            sums[0] += from[warp];
            sums[1] += from[second < PARTIAL ? second : 0];
        }
        sums[0] = warp_sum(sums[0]), sums[1] = warp_sum(sums[1]);
        if (lane == 0) mix[warp] = sums[0];
        if (lane == 0 && second <= MIX) mix[second] = sums[1];
    }
    __syncthreads();
    // Every warp works out the coefficients: pre 0 – 3, post 4 – 7, logits of comb 8 – 23.
    const int group = lane < 4 ? 0 : lane < 8 ? 1 : 2;
    float own = 0;
    if (lane < (p.head ? 4 : MIX)) {
        const float factor = 1.0f / sqrtf(mix[MIX] / static_cast<float>(STREAMS * p.hidden) + p.eps);
        own = mix[lane] * factor * p.scale[group] + p.base[lane];
        if (group < 2) own = sigmoid(own) * (group ? 2.0f : 1.0f) + (group ? 0.0f : p.hc_eps);
    }
    if (warp == COLLAPSE_WARPS) {
        float* out = p.coefficients + row * MIX;
        if (lane < 8) out[lane] = own;
        const float logit = __shfl_sync(ALL, own, (lane & 15) + 8);
        if (!p.head) sinkhorn(logit, p.iterations, p.hc_eps, lane, coefficients, out + 8);
    }
    const float pre[STREAMS] = {__shfl_sync(ALL, own, 0), __shfl_sync(ALL, own, 1), __shfl_sync(ALL, own, 2), __shfl_sync(ALL, own, 3)};
    if (warp < COLLAPSE_WARPS) {
#pragma unroll 1
        for (int cell = warp; cell < cells; cell += COLLAPSE_WARPS) {
            const int column = cell * CELL + lane * 8;
            float x[8] = {}, norm[8] = {1, 1, 1, 1, 1, 1, 1, 1}, sum = 0, most = 0;
            if (p.norm) load_eight(p.norm, column, p.hidden, norm);
#pragma unroll
            for (int i = 0; i < STREAMS; i++) {
                float v[8];
                load_eight(streams + static_cast<size_t>(i) * p.hidden, column, p.hidden, v);
#pragma unroll
                for (int e = 0; e < 8; e++) x[e] = fmaf(pre[i], v[e], x[e]);
            }
#pragma unroll
            for (int e = 0; e < 8; e++) {
                if (p.x && column + e < p.hidden) p.x[static_cast<size_t>(row) * p.hidden + column + e] = x[e];
                sum = fmaf(x[e], x[e], sum);
                x[e] *= norm[e];
                most = fmaxf(most, fabsf(x[e]));
            }
            float4* to = reinterpret_cast<float4*>(xs + column);
            to[0] = {x[0], x[1], x[2], x[3]}, to[1] = {x[4], x[5], x[6], x[7]};
            sum = warp_sum(sum), most = warp_max(most);
            if (lane == 0) squares[cell] = sum, largest[cell] = most;
        }
    }
    __syncthreads();
    if (warp == COLLAPSE_WARPS) return;
    const InputPlan plan = {p.columns, p.rows, p.forms};
    const RowScale scale = row_scale(squares, largest, cells, p.hidden, p.norm, p.eps, lane);
    if (p.forms & HALVES && threadIdx.x == 0)
        reinterpret_cast<float*>(p.image + plan.scales_at())[cells * 8 + row] = scale.down;
#pragma unroll 1
    for (int cell = warp; cell < cells; cell += COLLAPSE_WARPS) {
        float v[8];
        load_eight(xs, cell * CELL + lane * 8, MAX_CELLS * CELL, v);
#pragma unroll
        for (int e = 0; e < 8; e++) v[e] *= scale.factor;
        store_cell(plan, p.image, row, cell, lane, v, scale.up);
    }
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
        float v[8], sum, most = 0;
        load_cell(p.inputs, row, cell, lane, v, sum);
#pragma unroll
        for (int e = 0; e < 8; e++) most = fmaxf(most, fabsf(v[e]));
        sum = warp_sum(sum), most = warp_max(most);
        if (lane == 0) squares[cell] = sum, largest[cell] = most;
    }
    __syncthreads();
    const InputPlan plan = {p.columns, p.rows, p.forms};
    const RowScale scale = row_scale(squares, largest, cells, p.inputs.width, p.inputs.norm, p.inputs.eps, lane);
    if (p.forms & HALVES && threadIdx.x == 0)
        reinterpret_cast<float*>(p.image + plan.scales_at())[cells * 8 + row] = scale.down;
    for (int cell = warp; cell < cells; cell += 8) {
        float v[8], sum;
        load_cell(p.inputs, row, cell, lane, v, sum);
#pragma unroll
        for (int e = 0; e < 8; e++) v[e] *= scale.factor;
        store_cell(plan, p.image, row, cell, lane, v, scale.up);
    }
}
