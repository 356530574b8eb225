// What sampling asks of a row of logits.
#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>
#include <vector>

#include "kernels.h"
#include "step_kernels.h"
#include "threads.h"

// The highest of x [n], n > 0, and the lowest index that has it; −1 if any is NaN.
PS_EXPORT i64 ps_logits_top(const float* x, i64 n, float* top) { return kernels().steps.logits_top(x, n, top); }

// out = e^((x − top) · factor), n values; returns their sum.  out may be null.
PS_EXPORT double ps_logits_weights(const float* x, i64 n, float top, float factor, float* out, i64 threads) {
    constexpr i64 PART = 16384;  // sums are made part by part, whoever does which
    std::vector<double> sums(static_cast<std::size_t>((n + PART - 1) / PART));
    parallel_for(static_cast<i64>(sums.size()), threads, [&](i64 part) {
        const i64 first = part * PART;
        sums[static_cast<std::size_t>(part)] =
            kernels().steps.weigh_logits(x + first, std::min(PART, n - first), top, factor, out ? out + first : nullptr);
    });
    double all = 0;
    for (double sum : sums) all += sum;
    return all;
}

// Both for every one of some rows: its highest logit, where that is (−1 if any is NaN), and Σ e^(x − top).
PS_EXPORT void ps_logits_rows(const float* const* x, i64 rows, i64 n, i64* ids, float* tops, double* sums, i64 threads) {
    parallel_for(rows, threads, [&](i64 r) {
        ids[r] = ps_logits_top(x[r], n, tops + r);
        sums[r] = ids[r] < 0 ? 0 : ps_logits_weights(x[r], n, tops[r], 1.0f, nullptr, threads);
    });
}

namespace {

using u32 = std::uint32_t;

// Positive floats are ordered like their bits: buckets of one sixteenth of a power of two each.
constexpr int SHIFT = 19;
constexpr i64 BUCKETS = i64{1} << (31 - SHIFT);

i64 bucket_of(float weight) { return std::bit_cast<u32>(weight) >> SHIFT; }

// Sets to zero all but the best weights, ties to the lower index: as few as add up to `mass`, and at most `count`.
// Returns the sum of those that stay.
double keep_best(float* weights, i64 n, i64 count, double mass) {
    std::vector<double> masses(BUCKETS);
    std::vector<i64> counts(BUCKETS);
    for (i64 i = 0; i < n; i++) {
        const i64 b = bucket_of(weights[i]);
        masses[static_cast<std::size_t>(b)] += weights[i];
        counts[static_cast<std::size_t>(b)]++;
    }
    double sum = 0;
    i64 edge = BUCKETS - 1, kept = 0;
    for (; edge > 0; edge--) {  // whole buckets, as long as neither bound is reached
        const auto b = static_cast<std::size_t>(edge);
        if (counts[b] > 0 && (kept + counts[b] >= count || sum + masses[b] >= mass)) break;
        sum += masses[b];
        kept += counts[b];
    }
    std::vector<std::pair<float, i64>> close;  // (−weight, index) of the bucket that holds the bound
    for (i64 i = 0; i < n; i++) {
        const i64 b = bucket_of(weights[i]);
        if (b == edge) close.emplace_back(-weights[i], i);
        if (b <= edge) weights[i] = 0;
    }
    std::sort(close.begin(), close.end());
    for (const auto& [negative, i] : close) {
        if (kept >= count || (kept > 0 && sum >= mass)) break;
        weights[i] = -negative;
        sum += weights[i];
        kept++;
    }
    return sum;
}

}  // namespace

// Filters weights [n] of [0, 1] whose highest is 1 and whose sum is `total`, in place, by setting to zero what goes:
// all but the best top_k (0: any number), then all but as few of the best as make up top_p of what is left, then those
// below min_p of the best one.  The best one always stays.  Returns the sum of the others and it.
PS_EXPORT double ps_logits_filter(float* weights, i64 n, double total, i64 top_k, double top_p, float min_p) {
    if (top_k > 0 && top_k < n) total = keep_best(weights, n, top_k, INFINITY);
    if (top_p < 1) total = keep_best(weights, n, n, top_p * total);
    if (min_p > 0) {
        total = 0;
        for (i64 i = 0; i < n; i++) {
            if (weights[i] < min_p) weights[i] = 0;
            total += weights[i];
        }
    }
    return total;
}

// The first index at which the weights so far add up to more than `target`; the last with any weight if they never do.
PS_EXPORT i64 ps_logits_draw(const float* weights, i64 n, double target) {
    double sum = 0;
    i64 last = 0;
    for (i64 i = 0; i < n; i++) {
        if (weights[i] == 0) continue;
        sum += weights[i];
        last = i;
        if (sum > target) break;
    }
    return last;
}
