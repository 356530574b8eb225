// Which experts a token goes to.
#pragma once

#include "products.h"

struct ps_router {
    const ps_weight* gate;  // [experts, hidden]
    const float* bias;      // [experts] or null
    const i64* table;       // [vocabulary, count] or null: experts by token
    i64 count, normalize;
    float scale;
};

// x [rows, hidden], tokens [rows] → ids, weights [rows, count]
PS_EXPORT void ps_route_rows(const ps_router* r, const float* x, const i64* tokens, i64 rows, i64* ids, float* weights,
                             i64 threads);

// Experts and their weights for every row of logits [rows, experts].
// score = sqrt(softplus(logit)).  Where `given` [rows, count] is null, the `count` best of score + bias are chosen
// (bias [experts] may be null), best first, ties to the lower id; else the given ones.  Weights are the scores without
// bias, divided by their sum if `normalize`, times `scale`.
// ids, weights: [rows, count]; scratch: 2 · experts 8-byte words.
PS_EXPORT void ps_route(const float* logits, const float* bias, const i64* given, i64 rows, i64 experts, i64 count,
                        std::int32_t normalize, float scale, i64* ids, float* weights, void* scratch);
