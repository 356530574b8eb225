// Routing, and the activation inside an expert.
#include <algorithm>
#include <cfloat>
#include <functional>

#include "order.h"
#include "simd.h"

// Experts and their weights for every row of logits [rows, experts].
// score = sqrt(softplus(logit)).  Where `given` [rows, count] is null, the `count` best of score + bias are chosen
// (bias [experts] may be null), best first, ties to the lower id; else the given ones.  Weights are the scores without
// bias, divided by their sum if `normalize`, times `scale`.
// ids, weights: [rows, count]; scratch: 2 · experts 8-byte words.
PS_EXPORT void ps_route(const float* logits, const float* bias, const i64* given, i64 rows, i64 experts, i64 count,
                        std::int32_t normalize, float scale, i64* ids, float* weights, void* scratch) {
    u64* ranks = static_cast<u64*>(scratch);                   // [experts]
    float* scores = reinterpret_cast<float*>(ranks + experts);  // [experts]
    for (i64 r = 0; r < rows; r++, logits += experts, ids += count, weights += count) {
        for (i64 e = 0; e < experts; e++) {
            float x = logits[e];
            scores[e] = std::sqrt(x > 20.0f ? x : std::log1p(std::exp(x)));
        }
        if (given) {
            for (i64 i = 0; i < count; i++) ids[i] = given[r * count + i];
        } else {
            for (i64 e = 0; e < experts; e++)
                ranks[e] = rank(bias ? scores[e] + bias[e] : scores[e], static_cast<u32>(e));
            std::partial_sort(ranks, ranks + count, ranks + experts, std::greater<>());
            for (i64 i = 0; i < count; i++) ids[i] = ranked_id(ranks[i]);
        }
        float sum = 0;
        for (i64 i = 0; i < count; i++) sum += weights[i] = scores[ids[i]];
        sum += 1e-20f;
        for (i64 i = 0; i < count; i++) weights[i] = (normalize ? weights[i] / sum : weights[i]) * scale;
    }
}

// silu(min(gate, limit)) · clamp(up, ±limit) for n elements.
PS_KERNEL void ps_swiglu(const float* gate, const float* up, i64 n, float limit, float* out) {
    const vf high = splat(limit), low = splat(-limit), least = splat(-FLT_MAX);
    for (i64 i = 0; i < n; i += LANES) {
        vf g = load(gate + i, n - i), u = load(up + i, n - i);
        g = g > high ? high : g;
        g = g < least ? least : g;  // −inf would become inf / inf
        u = u > high ? high : u;
        u = u < low ? low : u;
        store(out + i, g / (1.0f + exponential(-g)) * u, n - i);
    }
}
