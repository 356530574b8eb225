// What a token leaves behind (spec §3.5 – §3.8): its row in the window's ring, its part in the compressors' frontiers, and the
// compressed rows that it completes.
//
// Floor: a few KB a row, nothing; what counts is the latency of one small kernel.  A window of 128 tokens (every 128th token of a
// ratio-128 layer) reads 512 KB of frontier.
//
// Rows of one launch may be neighbours of one sequence, one position behind the other: what a row needs of the rows before it comes from
// their projections, never from memory that another block of this launch writes.
#include "inputs.cuh"

constexpr int THREADS = 512;

constexpr int MAX_DIM = 2048;

struct Compressor {
    const float *values, *scores;  // [rows, width] each: projections of this step's tokens; null: there is none
    const float* ape;              // [ratio, width]
    const float* norm;             // [dim]
    RowsAt frontier;               // [capacity, 2 · width] floats: values, scores (with ape) of position p at p % capacity
    RowsAt rows;                   // [rows, dim]
    int width, dim, ratio, values_stride, scores_stride;
};

struct Remember {
    const float* kv;    // [rows, kv_stride]
    const float* norm;  // [dim]
    RowsAt window;      // [capacity, dim]
    const int* positions;      // [rows]
    char* const* states;       // [rows]
    const float* frequencies;  // [rope / 2]
    const float2* turns;       // [rows, rope / 2]: cosine and sine of a row's position
    Compressor compressors[2];
    int dim, rope, kind, rows, kv_stride;  // kind: of window and compressed rows
    float eps;
};

struct Turns {
    const int* positions;      // [rows]
    const float* frequencies;  // [half]
    float2* turns;             // [rows, half]: cosine and sine of position · frequency
    int half;
};

// In double, because positions reach a million.
PS_DEVICE float2 turn_by(int position, float frequency) {
    double sine, cosine;
    sincos(static_cast<double>(position) * static_cast<double>(frequency), &sine, &cosine);
    return {static_cast<float>(cosine), static_cast<float>(sine)};
}

// Once a token for every set of frequencies.
extern "C" __global__ void make_turns(const __grid_constant__ Turns p) {
    let_next_start();
    wait_for_previous();
    for (int i = threadIdx.x; i < p.half; i += blockDim.x)
        p.turns[blockIdx.x * p.half + i] = turn_by(p.positions[blockIdx.x], p.frequencies[i]);
}

// row [dim], anywhere: norm, rotation of the last `rope` channels by `turn`, a number of a pair → its cosine and sine → out.
template <class Turn>
PS_DEVICE void norm_rotate_store(const float* row, const float* norm, int dim, int rope, float eps, char* out, int kind, const Turn& turn) {
    __shared__ float sums[THREADS / WARP];
    constexpr int PAIRS = MAX_DIM / 2 / THREADS;  // of a thread
    float2 v[PAIRS], weight[PAIRS], by[PAIRS];
    float squares = 0;
#pragma unroll
    for (int k = 0; k < PAIRS; k++) {
        const int i = 2 * (threadIdx.x + k * THREADS);
        v[k] = {0, 0}, by[k] = {1, 0};
        if (i < dim) v[k] = *reinterpret_cast<const float2*>(row + i), weight[k] = *reinterpret_cast<const float2*>(norm + i);
        if (i < dim && i >= dim - rope) by[k] = turn((i - (dim - rope)) / 2);
        squares = fmaf(v[k].x, v[k].x, fmaf(v[k].y, v[k].y, squares));
    }
    squares = warp_sum(squares);
    if (threadIdx.x % WARP == 0) sums[threadIdx.x / WARP] = squares;
    __syncthreads();
    squares = 0;
#pragma unroll
    for (int w = 0; w < THREADS / WARP; w++) squares += sums[w];
    const float factor = 1.0f / sqrtf(squares / static_cast<float>(dim) + eps);
#pragma unroll
    for (int k = 0; k < PAIRS; k++) {
        const int i = 2 * (threadIdx.x + k * THREADS);
        if (i >= dim) break;
        const float a = v[k].x * factor * weight[k].x, b = v[k].y * factor * weight[k].y;
        store_row(out, kind, i, a * by[k].x - b * by[k].y);
        store_row(out, kind, i + 1, a * by[k].y + b * by[k].x);
    }
}

// grid: (1 + compressors, rows)
extern "C" __global__ void __launch_bounds__(THREADS) remember(const __grid_constant__ Remember p) {
    __shared__ __align__(8) float row[MAX_DIM];
    wait_for_previous();
    let_next_start();  // only now: attention reads queries before it waits for this kernel
    const int r = blockIdx.y, position = p.positions[r];
    char* state = p.states[r];
    if (blockIdx.x == 0) {
        char* out = state + p.window.at + static_cast<size_t>(position % p.window.capacity) * p.window.apart;
        norm_rotate_store(p.kv + static_cast<size_t>(r) * p.kv_stride, p.norm, p.dim, p.rope, p.eps, out, p.kind,
                          [&](int pair) { return p.turns[r * (p.rope / 2) + pair]; });
        return;
    }
    const Compressor& c = p.compressors[blockIdx.x - 1];
    if (!c.values) return;
    auto frontier = [&](int at) {
        return reinterpret_cast<float*>(state + c.frontier.at + static_cast<size_t>(at % c.frontier.capacity) * c.frontier.apart);
    };
    for (int k = threadIdx.x; k < c.width; k += THREADS) {
        float* to = frontier(position);
        to[k] = c.values[static_cast<size_t>(r) * c.values_stride + k];
        to[c.width + k] = c.scores[static_cast<size_t>(r) * c.scores_stride + k] + c.ape[static_cast<size_t>(position % c.ratio) * c.width + k];
    }
    if ((position + 1) % c.ratio) return;
    const int window = position / c.ratio, begin = window * c.ratio;
    int base = 0;  // the sequence's first row in this launch
    while (p.states[base] != state) base++;
    const int ahead = p.positions[base] - base;
    const bool overlap = c.width > c.dim;  // the window before speaks through the first series, this one through the second
    for (int i = threadIdx.x; i < c.dim; i += THREADS) {
        auto candidate = [&](int p_, float& value, float& score) {
            const int column = overlap && p_ >= begin ? c.dim + i : i;
            if (const int from = p_ - ahead; from >= base) {
                value = c.values[static_cast<size_t>(from) * c.values_stride + column];
                score = c.scores[static_cast<size_t>(from) * c.scores_stride + column] +
                        c.ape[static_cast<size_t>(p_ % c.ratio) * c.width + column];
            } else {
                const float* at = frontier(p_) + column;
                value = at[0], score = at[c.width];
            }
        };
        const int first = overlap && window > 0 ? begin - c.ratio : begin;
        float top = -INFINITY, sum = 0, mean = 0;
        for (int q = first; q <= position; q++) {
            float value, score;
            candidate(q, value, score);
            top = fmaxf(top, score);
        }
        for (int q = first; q <= position; q++) {
            float value, score;
            candidate(q, value, score);
            const float e = expf(score - top);
            sum += e, mean = fmaf(e, value, mean);
        }
        row[i] = mean / sum;
    }
    __syncthreads();
    char* out = state + c.rows.at + static_cast<size_t>(window) * c.rows.apart;
    norm_rotate_store(row, c.norm, c.dim, p.rope, p.eps, out, p.kind, [&](int pair) { return turn_by(begin, p.frequencies[pair]); });
}
