// What a token leaves behind (spec §3.5 – §3.8): its row in the window's ring, its part in the compressors' frontiers, and the
// compressed rows that it completes.
//
// Floor: a few KB a row, nothing; what counts is the latency of one small kernel.  A window of 128 tokens (every 128th token of a
// ratio-128 layer) reads 512 KB of frontier.
//
// Rows of one launch may be neighbours of one sequence: what a row needs of the rows before it comes from their projections, never from
// memory that another block of this launch writes.
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

// Once a token for every set of frequencies: in double, because positions reach a million.
extern "C" __global__ void make_turns(const __grid_constant__ Turns p) {
    let_next_start();
    wait_for_previous();
    for (int i = threadIdx.x; i < p.half; i += blockDim.x) {
        double sine, cosine;
        sincos(static_cast<double>(p.positions[blockIdx.x]) * static_cast<double>(p.frequencies[i]), &sine, &cosine);
        p.turns[blockIdx.x * p.half + i] = {static_cast<float>(cosine), static_cast<float>(sine)};
    }
}

PS_DEVICE float block_sum(float v, float* scratch) {
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    v = warp_sum(v);
    __syncthreads();
    if (lane == 0) scratch[warp] = v;
    __syncthreads();
    float sum = 0;
    for (int w = 0; w < THREADS / WARP; w++) sum += scratch[w];
    return sum;
}

// row [dim] in shared memory: norm, rotation of the last `rope` dims by `position` → out
PS_DEVICE void norm_rotate_store(float* row, const float* norm, int dim, int rope, const float* frequencies, int position, float eps,
                                 float* scratch, char* out, int kind) {
    float squares = 0;
    for (int i = threadIdx.x; i < dim; i += THREADS) squares += row[i] * row[i];
    const float factor = 1.0f / sqrtf(block_sum(squares, scratch) / static_cast<float>(dim) + eps);
    for (int i = threadIdx.x; i < dim; i += THREADS) row[i] = row[i] * factor * norm[i];
    __syncthreads();
    for (int i = threadIdx.x; i < dim - rope; i += THREADS) store_row(out, kind, i, row[i]);
    for (int i = threadIdx.x; i < rope / 2; i += THREADS) {
        double sine, cosine;
        sincos(static_cast<double>(position) * static_cast<double>(frequencies[i]), &sine, &cosine);
        const float s = static_cast<float>(sine), c = static_cast<float>(cosine);
        const float a = row[dim - rope + 2 * i], b = row[dim - rope + 2 * i + 1];
        store_row(out, kind, dim - rope + 2 * i, a * c - b * s);
        store_row(out, kind, dim - rope + 2 * i + 1, a * s + b * c);
    }
}

// grid: (1 + compressors, rows)
extern "C" __global__ void __launch_bounds__(THREADS) remember(const __grid_constant__ Remember p) {
    __shared__ float row[MAX_DIM], scratch[THREADS / WARP];
    let_next_start();
    wait_for_previous();
    const int r = blockIdx.y, position = p.positions[r];
    char* state = p.states[r];
    if (blockIdx.x == 0) {
        for (int i = threadIdx.x; i < p.dim; i += THREADS) row[i] = p.kv[static_cast<size_t>(r) * p.kv_stride + i];
        char* out = state + p.window.at + static_cast<size_t>(position % p.window.capacity) * p.window.apart;
        norm_rotate_store(row, p.norm, p.dim, p.rope, p.frequencies, position, p.eps, scratch, out, p.kind);
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
    const bool overlap = c.width > c.dim;  // the window before speaks through the first series, this one through the second
    for (int i = threadIdx.x; i < c.dim; i += THREADS) {
        auto candidate = [&](int p_, float& value, float& score) {
            const int column = overlap && p_ >= begin ? c.dim + i : i;
            int from = -1;
            for (int k = 0; k <= r; k++)
                if (p.states[k] == state && p.positions[k] == p_) from = k;
            if (from >= 0) {
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
    norm_rotate_store(row, c.norm, c.dim, p.rope, p.frequencies, begin, p.eps, scratch, out, p.kind);
}
