// From a layer's input to the experts that see it, and from the heads' results back to a layer's output.
#include "share.h"
#include "steps.h"
#include "workspace.h"

constexpr i64 CHUNK = 512;  // rows at a time: bounds the memory between the steps

// See experts.cpp.
PS_EXPORT void ps_route(const float* logits, const float* bias, const i64* given, i64 rows, i64 experts, i64 count,
                        std::int32_t normalize, float scale, i64* ids, float* weights, void* scratch);

struct ps_router {
    const ps_weight* gate;  // [experts, hidden]
    const float* bias;      // [experts] or null
    const i64* table;       // [vocabulary, count] or null: experts by token
    i64 count, normalize;
    float scale;
};

// x [rows, hidden], tokens [rows] → ids, weights [rows, count]
PS_EXPORT void ps_router_of(const ps_router* r, const float* x, const i64* tokens, i64 rows, i64* ids, float* weights,
                            i64 threads) {
    const i64 experts = r->gate->rows, hidden = r->gate->columns, count = r->count;
    for (i64 from = 0; from < rows; from += CHUNK) {
        const i64 chunk = std::min(CHUNK, rows - from);
        float* logits = workspace<BETWEEN_STEPS>(chunk * experts);
        ps_products(&r->gate, 1, x + from * hidden, hidden, chunk, &logits, &experts, threads);
        over_rows(chunk, 20 * experts, threads, [&](i64 a, i64 b) {
            void* scratch = workspace<IN_A_PIECE>(4 * experts);
            for (i64 i = a; i < b; i++) {
                const i64* given = r->table ? r->table + tokens[from + i] * count : nullptr;
                ps_route(logits + i * experts, r->bias, given, 1, experts, count,
                         static_cast<std::int32_t>(r->normalize), r->scale, ids + (from + i) * count,
                         weights + (from + i) * count, scratch);
            }
        });
    }
}

PS_EXPORT void ps_output_of(const ps_output* o, const float* x, i64 rows, float* out, i64 threads) {
    const i64 in = o->groups * o->out_a->columns, middle = o->out_a->rows, hidden = o->out_b->rows;
    for (i64 from = 0; from < rows; from += CHUNK) {
        const i64 chunk = std::min(CHUNK, rows - from);
        float *between = workspace<BETWEEN_STEPS>(chunk * middle), *to = out + from * hidden;
        ps_grouped_product(o->out_a, o->groups, x + from * in, in, chunk, between, middle, threads);
        ps_products(&o->out_b, 1, between, middle, chunk, &to, &hidden, threads);
    }
}
