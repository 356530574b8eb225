// What the tokens of a long step leave behind (spec §3.5 – §3.8): as state.cu, in three parts, because a step may be longer than the rings
// and must change nothing until it is committed.
//
//   keep_rows    the step's own key/value rows, where attention finds them
//   pool_rows    compressed rows that the step completes: nobody counts them before the position has moved
//   commit_rows  the last rows into the rings
#include "common.cuh"

constexpr int THREADS = 512;

struct StepRows {
    const int *positions, *firsts;  // [rows]; firsts: the first row of the row's sequence in this step
    char* const* states;            // [rows]
    const int* some;                // [grid]: the rows that this launch is about
};

struct KeepRows {
    const float* kv;      // [rows, dim]
    const float* norm;    // [dim]
    const float2* turns;  // [rows, rope / 2]
    u16* fresh;           // [rows, dim]
    int dim, rope, rows;
    float eps;
};

// A warp a row
extern "C" __global__ void __launch_bounds__(256) keep_rows(const __grid_constant__ KeepRows p) {
    let_next_start();
    wait_for_previous();
    const int row = (blockIdx.x * blockDim.x + threadIdx.x) / WARP, lane = threadIdx.x % WARP;
    if (row >= p.rows) return;
    const float* kv = p.kv + static_cast<size_t>(row) * p.dim;
    u16* out = p.fresh + static_cast<size_t>(row) * p.dim;
    float squares = 0;
    for (int i = lane; i < p.dim; i += WARP) squares = fmaf(kv[i], kv[i], squares);
    const float factor = 1.0f / sqrtf(warp_sum(squares) / static_cast<float>(p.dim) + p.eps);
    const int plain = p.dim - p.rope;
    for (int i = lane; i < plain; i += WARP) out[i] = float_to_half(kv[i] * factor * p.norm[i]);
    for (int i = lane; i < p.rope / 2; i += WARP) {
        const float2 turn = p.turns[static_cast<size_t>(row) * (p.rope / 2) + i];
        const int at = plain + 2 * i;
        const float a = kv[at] * factor * p.norm[at], b = kv[at + 1] * factor * p.norm[at + 1];
        out[at] = float_to_half(a * turn.x - b * turn.y);
        out[at + 1] = float_to_half(a * turn.y + b * turn.x);
    }
}

struct PoolRows {
    StepRows step;
    const float *values, *scores;  // [rows, width] each: this step's projections
    const float* ape;              // [ratio, width]
    const float* norm;             // [dim]
    const float* frequencies;      // [rope / 2]
    RowsAt frontier;               // [capacity, 2 · width] floats: values, scores (with ape) of position p at p % capacity
    RowsAt out;                    // [rows, dim] of `kind`
    int width, dim, rope, ratio, kind;
    float eps;
};

// A block for every row that completes a window.  A thread has a channel, or several.
extern "C" __global__ void __launch_bounds__(THREADS) pool_rows(const __grid_constant__ PoolRows p) {
    extern __shared__ float pooled[];  // [dim]
    __shared__ float sums[THREADS / WARP];
    let_next_start();
    wait_for_previous();
    const int row = p.step.some[blockIdx.x], position = p.step.positions[row];
    char* state = p.step.states[row];
    const int oldest = position - (row - p.step.firsts[row]);  // the first position that this step has
    const int window = position / p.ratio, begin = window * p.ratio, warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const bool overlap = p.width > p.dim;  // the window before speaks through the first series, this one through the second
    float squares = 0;
    for (int c = threadIdx.x; c < p.dim; c += THREADS) {
        auto candidate = [&](int q, float& value, float& score) {
            const int column = overlap && q >= begin ? p.dim + c : c;
            if (q >= oldest) {
                const size_t at = static_cast<size_t>(row - (position - q)) * p.width + column;
                value = p.values[at], score = p.scores[at] + p.ape[static_cast<size_t>(q % p.ratio) * p.width + column];
            } else {
                const char* place = state + p.frontier.at + static_cast<size_t>(q % p.frontier.capacity) * p.frontier.apart;
                const float* at = reinterpret_cast<const float*>(place) + column;
                value = at[0], score = at[p.width];
            }
        };
        float top = -INFINITY, sum = 0, mean = 0, value, score;
#pragma unroll 8
        for (int q = overlap && window > 0 ? begin - p.ratio : begin; q <= position; q++) {
            candidate(q, value, score);
            top = fmaxf(top, score);
        }
#pragma unroll 8
        for (int q = overlap && window > 0 ? begin - p.ratio : begin; q <= position; q++) {
            candidate(q, value, score);
            const float e = expf(score - top);
            sum += e, mean = fmaf(e, value, mean);
        }
        pooled[c] = mean / sum;
        squares = fmaf(pooled[c], pooled[c], squares);
    }
    squares = warp_sum(squares);
    if (lane == 0) sums[warp] = squares;
    __syncthreads();
    squares = 0;
    for (int w = 0; w < THREADS / WARP; w++) squares += sums[w];
    const float factor = 1.0f / sqrtf(squares / static_cast<float>(p.dim) + p.eps);
    char* out = state + p.out.at + static_cast<size_t>(window) * p.out.apart;
    const int plain = p.dim - p.rope;
    for (int i = threadIdx.x; i < plain; i += THREADS) store_row(out, p.kind, i, pooled[i] * factor * p.norm[i]);
    for (int i = threadIdx.x; i < p.rope / 2; i += THREADS) {
        double sine, cosine;
        sincos(static_cast<double>(begin) * static_cast<double>(p.frequencies[i]), &sine, &cosine);
        const float s = static_cast<float>(sine), c = static_cast<float>(cosine);
        const int at = plain + 2 * i;
        const float a = pooled[at] * factor * p.norm[at], b = pooled[at + 1] * factor * p.norm[at + 1];
        store_row(out, p.kind, at, a * c - b * s), store_row(out, p.kind, at + 1, a * s + b * c);
    }
}

struct CommitRows {
    StepRows step;
    const u16* fresh;              // [rows, width], or null: this is a compressor's frontier
    const float *values, *scores;  // [rows, width]
    const float* ape;              // [ratio, width]
    RowsAt ring;
    int width, ratio;
};

// A block for every row that goes into the ring: the last ones of every sequence, as many as fit
extern "C" __global__ void __launch_bounds__(256) commit_rows(const __grid_constant__ CommitRows p) {
    let_next_start();
    wait_for_previous();
    const int row = p.step.some[blockIdx.x], position = p.step.positions[row];
    const size_t from = static_cast<size_t>(row) * p.width;
    char* to = p.step.states[row] + p.ring.at + static_cast<size_t>(position % p.ring.capacity) * p.ring.apart;
    for (int i = threadIdx.x; i < p.width; i += blockDim.x) {
        if (p.fresh) {
            reinterpret_cast<u16*>(to)[i] = p.fresh[from + i];
        } else {
            float* both = reinterpret_cast<float*>(to);
            both[i] = p.values[from + i];
            both[p.width + i] = p.scores[from + i] + p.ape[static_cast<size_t>(position % p.ratio) * p.width + i];
        }
    }
}
