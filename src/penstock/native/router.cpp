#include "router.h"

#include <algorithm>
#include <functional>

#include "order.h"
#include "share.h"
#include "simd.h"
#include "step_bytes.h"
#include "steps.h"
#include "workspace.h"

i64 route_piece_floats(i64 experts) { return 4 * experts; }

i64 router_floats(const ps_step_sizes& s, i64 rows) { return std::min(rows, STEP_ROWS) * s.experts; }

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

PS_EXPORT void ps_route_rows(const ps_router* r, const float* x, const i64* tokens, i64 rows, i64* ids, float* weights,
                             i64 threads) {
    const i64 experts = r->gate->rows, hidden = r->gate->columns, count = r->count;
    for (i64 from = 0; from < rows; from += STEP_ROWS) {
        const i64 chunk = std::min(STEP_ROWS, rows - from);
        float* logits = workspace<BETWEEN_STEPS>(chunk * experts);
        ps_products(&r->gate, 1, x + from * hidden, hidden, chunk, &logits, &experts, threads);
        over_rows(chunk, 20 * experts, threads, [&](i64 a, i64 b) {
            void* scratch = workspace<IN_A_PIECE>(route_piece_floats(experts));
            for (i64 i = a; i < b; i++) {
                const i64* given = r->table ? r->table + tokens[from + i] * count : nullptr;
                ps_route(logits + i * experts, r->bias, given, 1, experts, count,
                         static_cast<std::int32_t>(r->normalize), r->scale, ids + (from + i) * count,
                         weights + (from + i) * count, scratch);
            }
        });
    }
}
