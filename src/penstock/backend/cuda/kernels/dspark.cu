// What a DSpark module has besides the kernels of layers: what it sees of the trunk, and the choice of one token after the other.
//
// Floor of a choice: the Markov product's weights, 129,280 × 256 numbers in 16 bits, 66 MB, 15 µs at 4.5 TB/s (dense.cu).  What is left
// for these kernels is a few microseconds of adding two rows of logits and finding the best.
#include "common.cuh"

constexpr int THREADS = 256, WARPS = THREADS / WARP;

// The same for all threads, in an order that depends on nothing.
PS_DEVICE float block_sum(float v, float (&parts)[WARPS]) {
    v = warp_sum(v);
    if (threadIdx.x % WARP == 0) parts[threadIdx.x / WARP] = v;
    __syncthreads();
    float sum = 0;
#pragma unroll
    for (int w = 0; w < WARPS; w++) sum += parts[w];
    return sum;
}

struct MeanStreams {
    const float* streams;  // [rows, n, hidden]
    const float* y;        // [rows, hidden]: a sublayer's output that is not in the streams yet, or null
    const float* mix;      // [rows, mix_stride]: with which it goes there: pre n, post n, comb n · n
    const int* some;       // [rows of out]: which rows; null: all
    float* out;            // [rows, out_stride]
    int n, hidden, mix_stride, out_stride;
};

// grid: (hidden / 256, rows of out).  The mean of what the streams become: their sums are never written.
extern "C" __global__ void __launch_bounds__(THREADS) mean_streams(const __grid_constant__ MeanStreams p) {
    let_next_start();
    wait_for_previous();
    const int d = blockIdx.x * THREADS + threadIdx.x, n = p.n;
    if (d >= p.hidden) return;
    const size_t row = p.some ? p.some[blockIdx.y] : blockIdx.y;
    const float* streams = p.streams + row * n * p.hidden + d;
    float sum = 0;
    if (p.y) {
        const float* mix = p.mix + row * p.mix_stride;
        float post = 0;
        for (int j = 0; j < n; j++) post += mix[n + j];
        sum = post * p.y[row * p.hidden + d];
        for (int i = 0; i < n; i++) {
            float comb = 0;
            for (int j = 0; j < n; j++) comb += mix[2 * n + i * n + j];
            sum = fmaf(comb, streams[static_cast<size_t>(i) * p.hidden], sum);
        }
    } else {
        for (int i = 0; i < n; i++) sum += streams[static_cast<size_t>(i) * p.hidden];
    }
    p.out[static_cast<size_t>(blockIdx.y) * p.out_stride + d] = sum / static_cast<float>(n);
}

struct Sureness {
    const float* streams;     // [rows, n, hidden]
    const float* mix;         // [rows, mix_stride]: the first n fold them
    const float* confidence;  // [hidden]
    float* sure;              // [rows]
    int n, hidden, mix_stride;
};

// grid: rows.  What the folded streams alone say of how likely a row's token is right.
extern "C" __global__ void __launch_bounds__(THREADS) sureness(const __grid_constant__ Sureness p) {
    __shared__ float parts[WARPS];
    let_next_start();
    wait_for_previous();
    const size_t row = blockIdx.x;
    const float *streams = p.streams + row * p.n * p.hidden, *mix = p.mix + row * p.mix_stride;
    float sum = 0;
    for (int d = threadIdx.x; d < p.hidden; d += THREADS) {
        float x = 0;
        for (int i = 0; i < p.n; i++) x = fmaf(mix[i], streams[static_cast<size_t>(i) * p.hidden + d], x);
        sum = fmaf(p.confidence[d], x, sum);
    }
    sum = block_sum(sum, parts);
    if (threadIdx.x == 0) p.sure[row] = sum;
}

struct Guess {
    int token;
    float chance;
};

struct ChooseGuess {
    const float *logits, *added;  // [vocabulary]: of the row, and of the token before
    const float* said;            // [rank]: of the token before
    const float* confidence;      // [rank]
    const float* sure;            // see `Sureness`
    u64* best;                    // zero, before and after
    u32* counter;                 // likewise
    Guess* found;
    int vocabulary, rank;
};

// grid: any.  The best token, ties to the lower id, and the chance that it is right: what the last block says.
extern "C" __global__ void __launch_bounds__(THREADS) choose_guess(const __grid_constant__ ChooseGuess p) {
    __shared__ u64 tops[WARPS];
    __shared__ float parts[WARPS];
    __shared__ bool is_last;
    let_next_start();
    wait_for_previous();
    u64 top = 0;
    for (int i = blockIdx.x * THREADS + threadIdx.x; i < p.vocabulary; i += gridDim.x * THREADS) {
        const u64 rank = rank_of(p.logits[i] + p.added[i], i);
        top = rank > top ? rank : top;
    }
    top = warp_max(top);
    if (threadIdx.x % WARP == 0) tops[threadIdx.x / WARP] = top;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int w = 1; w < WARPS; w++) top = tops[w] > top ? tops[w] : top;
        atomicMax(p.best, top);
        is_last = count_up(p.counter) == gridDim.x - 1;
    }
    __syncthreads();
    if (!is_last) return;
    float sum = 0;
    for (int i = threadIdx.x; i < p.rank; i += THREADS) sum = fmaf(p.confidence[i], p.said[i], sum);
    sum = block_sum(sum, parts);
    if (threadIdx.x) return;
    *p.found = {static_cast<int>(ranked_id(atomicExch(p.best, 0ull))), 1.0f / (1.0f + expf(-(*p.sure + sum)))};
    *p.counter = 0;
}
