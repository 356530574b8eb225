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

struct Compressor {
    const float *values, *scores;  // [rows, width] each: projections of this step's tokens; null: there is none
    const float* ape;              // [ratio, width]
    const float* norm;             // [dim]
    float* frontier;               // [slots, capacity, 2 · width]: values, scores (with ape) of position p at p % capacity
    u16* rows;                     // [slots, rows_capacity, dim] f16
    long long rows_stride;         // elements of a slot
    int width, dim, ratio, capacity;  // capacity ≥ 2 · ratio + 7
};

struct Remember {
    const float* kv;    // [rows, dim]
    const float* norm;  // [dim]
    u16* window;        // [slots, window_capacity, dim] f16
    long long window_stride;
    const int *positions, *slots;  // [rows]
    const float* frequencies;      // [rope / 2]
    Compressor compressors[2];
    int dim, rope, window_capacity, rows;
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
    if (threadIdx.x >= p.half) return;
    double sine, cosine;
    sincos(static_cast<double>(p.positions[blockIdx.x]) * static_cast<double>(p.frequencies[threadIdx.x]), &sine, &cosine);
    p.turns[blockIdx.x * p.half + threadIdx.x] = {static_cast<float>(cosine), static_cast<float>(sine)};
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

// row [dim] in shared memory: norm, rotation of the last `rope` dims by `position`, f16 → out
PS_DEVICE void norm_rotate_store(float* row, const float* norm, int dim, int rope, const float* frequencies, int position, float eps,
                                 float* scratch, u16* out) {
    const int i = threadIdx.x;
    const float v = i < dim ? row[i] : 0.0f;
    const float factor = 1.0f / sqrtf(block_sum(v * v, scratch) / static_cast<float>(dim) + eps);
    if (i < dim) row[i] = v * factor * norm[i];
    __syncthreads();
    if (i < dim - rope) out[i] = float_to_half(row[i]);
    if (i < rope / 2) {
        double sine, cosine;
        sincos(static_cast<double>(position) * static_cast<double>(frequencies[i]), &sine, &cosine);
        const float s = static_cast<float>(sine), c = static_cast<float>(cosine);
        const float a = row[dim - rope + 2 * i], b = row[dim - rope + 2 * i + 1];
        out[dim - rope + 2 * i] = float_to_half(a * c - b * s);
        out[dim - rope + 2 * i + 1] = float_to_half(a * s + b * c);
    }
}

// grid: (1 + compressors, rows)
extern "C" __global__ void __launch_bounds__(THREADS) remember(const __grid_constant__ Remember p) {
    __shared__ float row[THREADS], scratch[THREADS / WARP];
    let_next_start();
    wait_for_previous();
    const int r = blockIdx.y, position = p.positions[r], slot = p.slots[r], i = threadIdx.x;
    if (blockIdx.x == 0) {
        if (i < p.dim) row[i] = p.kv[static_cast<size_t>(r) * p.dim + i];
        u16* out = p.window + slot * p.window_stride + static_cast<size_t>(position % p.window_capacity) * p.dim;
        norm_rotate_store(row, p.norm, p.dim, p.rope, p.frequencies, position, p.eps, scratch, out);
        return;
    }
    const Compressor& c = p.compressors[blockIdx.x - 1];
    if (!c.values) return;
    float* frontier = c.frontier + static_cast<size_t>(slot) * c.capacity * 2 * c.width;
    for (int k = i; k < c.width; k += THREADS) {
        float* to = frontier + static_cast<size_t>(position % c.capacity) * 2 * c.width;
        to[k] = c.values[static_cast<size_t>(r) * c.width + k];
        to[c.width + k] = c.scores[static_cast<size_t>(r) * c.width + k] + c.ape[static_cast<size_t>(position % c.ratio) * c.width + k];
    }
    if ((position + 1) % c.ratio) return;
    const int window = position / c.ratio, begin = window * c.ratio;
    const bool overlap = c.width > c.dim;  // the window before speaks through the first series, this one through the second
    if (i < c.dim) {
        auto candidate = [&](int p_, float& value, float& score) {
            const int column = overlap && p_ >= begin ? c.dim + i : i;
            int from = -1;
            for (int k = 0; k <= r; k++)
                if (p.slots[k] == slot && p.positions[k] == p_) from = k;
            if (from >= 0) {
                value = c.values[static_cast<size_t>(from) * c.width + column];
                score = c.scores[static_cast<size_t>(from) * c.width + column] +
                        c.ape[static_cast<size_t>(p_ % c.ratio) * c.width + column];
            } else {
                const float* at = frontier + static_cast<size_t>(p_ % c.capacity) * 2 * c.width + column;
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
    u16* out = c.rows + slot * c.rows_stride + static_cast<size_t>(window) * c.dim;
    norm_rotate_store(row, c.norm, c.dim, p.rope, p.frequencies, begin, p.eps, scratch, out);
}
