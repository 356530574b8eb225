// From logits to a token on the card, for the common cases: greedy, and one draw at a temperature.
//
// Floor: 129,280 floats a row, 0.5 MB, in L2: under a microsecond; what counts is latency.  Weights are added in double, part by part
// in a fixed order, so the draw from the same logits and the same chance is the same wherever it runs.
#include "common.cuh"

constexpr int PARTS = 64, THREADS = 256;

struct Sample {
    const float* logits;        // [rows, stride]
    const u32* mask;            // [rows, words] bits of the tokens that are allowed, or null
    const float* temperatures;  // [rows]; 0: greedy
    const double* chances;      // [rows] of [0, 1)
    u64* best;                  // [rows, PARTS] ranks
    double* sums;               // [rows, PARTS]
    int* tokens;                // [rows]; −1 where a logit is NaN
    int vocabulary, stride, words;
};

PS_DEVICE float logit(const Sample& p, int row, int i) {
    const float v = p.logits[static_cast<size_t>(row) * p.stride + i];
    return p.mask && !(p.mask[static_cast<size_t>(row) * p.words + i / 32] >> i % 32 & 1) ? -INFINITY : v;
}

PS_DEVICE int part_begin(const Sample& p, int part) { return static_cast<int>(static_cast<long long>(p.vocabulary) * part / PARTS); }

// grid: (PARTS, rows)
extern "C" __global__ void __launch_bounds__(THREADS) sample_best(const __grid_constant__ Sample p) {
    __shared__ u64 scratch[THREADS / WARP];
    let_next_start();
    wait_for_previous();
    const int row = blockIdx.y, part = blockIdx.x, end = part_begin(p, part + 1);
    u64 best = 0;
    for (int i = part_begin(p, part) + threadIdx.x; i < end; i += THREADS) {
        const float v = logit(p, row, i);
        const u64 rank = v != v ? ~0ull : rank_of(v, i);  // NaN above all
        best = rank > best ? rank : best;
    }
    best = warp_max(best);
    if (threadIdx.x % WARP == 0) scratch[threadIdx.x / WARP] = best;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int w = 1; w < THREADS / WARP; w++) best = scratch[w] > best ? scratch[w] : best;
        p.best[row * PARTS + part] = best;
    }
}

PS_DEVICE u64 best_of(const Sample& p, int row, int lane) {
    const u64 a = p.best[row * PARTS + lane], b = p.best[row * PARTS + lane + WARP];
    return warp_max(a > b ? a : b);
}
PS_DEVICE float ranked_value(u64 rank) {
    const u32 b = static_cast<u32>(rank >> 32);
    return bits_float(b & 0x80000000u ? b & 0x7fffffffu : ~b);
}
PS_DEVICE double weight_of(const Sample& p, int row, int i, float top, float inverse) {
    return exp(static_cast<double>((logit(p, row, i) - top) * inverse));
}

// grid: (PARTS, rows): sums of weights; a thread has a stretch of neighbours, stretches are added in order
extern "C" __global__ void __launch_bounds__(THREADS) sample_sums(const __grid_constant__ Sample p) {
    __shared__ double scratch[THREADS];
    let_next_start();
    wait_for_previous();
    const int row = blockIdx.y, part = blockIdx.x, begin = part_begin(p, part), end = part_begin(p, part + 1);
    if (p.temperatures[row] == 0) return;
    const float top = ranked_value(best_of(p, row, threadIdx.x % WARP)), inverse = 1.0f / p.temperatures[row];
    const int each = (end - begin + THREADS - 1) / THREADS;
    double sum = 0;
    for (int i = begin + threadIdx.x * each; i < min(begin + (static_cast<int>(threadIdx.x) + 1) * each, end); i++)
        sum += weight_of(p, row, i, top, inverse);
    scratch[threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int i = 1; i < THREADS; i++) sum += scratch[i];
        p.sums[row * PARTS + part] = sum;
    }
}

// grid: (1, rows): the first token at which the weights so far exceed chance · (all weights)
extern "C" __global__ void __launch_bounds__(THREADS) sample_draw(const __grid_constant__ Sample p) {
    __shared__ double scratch[THREADS];
    __shared__ int chosen;
    let_next_start();
    wait_for_previous();
    const int row = blockIdx.y;
    const u64 best = best_of(p, row, threadIdx.x % WARP);
    if (best == ~0ull || p.temperatures[row] == 0) {
        if (threadIdx.x == 0) p.tokens[row] = best == ~0ull ? -1 : static_cast<int>(ranked_id(best));
        return;
    }
    const float top = ranked_value(best), inverse = 1.0f / p.temperatures[row];
    double all = 0, before = 0;
    for (int i = 0; i < PARTS; i++) all += p.sums[row * PARTS + i];
    const double target = p.chances[row] * all;
    int part = 0;
    for (; part < PARTS - 1 && before + p.sums[row * PARTS + part] <= target; part++) before += p.sums[row * PARTS + part];
    const int begin = part_begin(p, part), end = part_begin(p, part + 1), each = (end - begin + THREADS - 1) / THREADS;
    const int first = begin + threadIdx.x * each, last = min(first + each, end);
    double sum = 0;
    for (int i = first; i < last; i++) sum += weight_of(p, row, i, top, inverse);
    scratch[threadIdx.x] = sum;
    if (threadIdx.x == 0) chosen = -1;
    __syncthreads();
    for (int i = 0; i < static_cast<int>(threadIdx.x); i++) before += scratch[i];
    if (before <= target && target < before + sum) {
        for (int i = first; i < last; i++) {
            before += weight_of(p, row, i, top, inverse);
            if (before > target) {
                chosen = i;
                break;
            }
        }
    }
    __syncthreads();
    if (threadIdx.x) return;
    if (chosen < 0)  // rounding has left nobody: the last that has any weight
        for (chosen = p.vocabulary - 1; chosen > 0 && weight_of(p, row, chosen, top, inverse) == 0;) chosen--;
    p.tokens[row] = chosen;
}
