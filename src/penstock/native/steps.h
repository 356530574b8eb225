// The steps of an attention sublayer: what each one reads, and its entry point.  `attention_layer.cpp` runs them in a row.
#pragma once

#include "products.h"
#include "rows.h"

constexpr i64 MAX_PROJECTIONS = 16;
constexpr i64 STEP_ROWS = 512;  // rows at a time: bounds the memory between two steps

// Weights that read the same input, their results side by side.
struct ps_projections {
    const ps_weight* const* weights;
    i64 count;  // <= MAX_PROJECTIONS
    i64 width;  // rows of all of them together
};

// x [rows, columns] → out [rows, width]
PS_EXPORT void ps_project(const ps_projections* p, const float* x, i64 rows, float* out, i64 threads);

struct ps_queries {
    const ps_weight *q_b, *index_q_b;  // the second is null in layers without an indexer
    const float* norm;                 // [rank]
    i64 column, rank;                  // where the low-rank query stands among the projections, and its width
    i64 heads, dim, index_heads, index_dim;
    i64 half;           // pairs of channels that are rotated
    i64 low_precision;  // 1: the low-rank query goes through FP8, the indexer's queries through FP4 (low_precision.h)
    float eps;
};

// Low-rank query → norm → q_b → norm of each head → rotation; the indexer's queries are rotated only.
// projected: rows `stride` apart; cos, sin [rows, half]; q [rows, heads, dim]; index_q [rows, index_heads, index_dim]
PS_EXPORT void ps_queries_run(const ps_queries* p, const float* projected, i64 stride, const float* cos,
                              const float* sin, i64 rows, float* q, float* index_q, i64 threads);

struct ps_keys {
    const float* norm;  // [dim]
    i64 column, dim, half;
    i64 low_precision;  // 1: channels that are not rotated go through FP8
    float eps;
};

// Key/value rows → norm → rotation → the cache's type: to `fresh` [rows, dim], or to their places in the ring if that
// is null, from `position` on.
PS_EXPORT void ps_keys_run(const ps_keys* k, const float* projected, i64 stride, const float* cos, const float* sin,
                           i64 rows, const ps_ring* ring, void* fresh, i64 position, i64 threads);

struct ps_compressor {
    const float* ape;                // [ratio, width]: added to the scores, by place in the window
    const float* norm;               // [dim]
    const float* frequencies;        // [half]: angle per position
    i64 value_column, score_column;  // where they stand among the projections
    i64 width, dim;                  // of values and of scores; width = 2 · dim where windows overlap
    i64 half, ratio;
    i64 low_precision;  // 1: rows go through FP8 like keys; 2: they are the indexer's and go through FP4
    float eps;
};

// `count` tokens from `position` on, projected, rows `stride` apart.  Finished rows go to rows[window]; what later
// windows need goes to `fresh` (of the last `kept` tokens), or to its place in the frontier if that is null.
PS_EXPORT void ps_compress(const ps_compressor* c, const float* projected, i64 stride, i64 count, i64 position,
                           const ps_ring* frontier, float* fresh, i64 kept, void* rows, i64 rows_kind, i64 threads);

struct ps_index {
    const float* q;      // [tokens, heads, dim]
    const float* gates;  // rows of `heads`, gates_stride apart
    i64 gates_stride;
    i64 tokens, heads, dim;
    const void* rows;  // [row_count, dim]
    i64 rows_stride, rows_kind, row_count;
    const i64* visible;    // [tokens] or null: token t sees the first visible[t] rows (null: as many as windows of
    i64 position, ratio;   // `ratio` tokens have ended when token `position` + t has come)
    i64 count, width;      // rows wanted; width of picks: min(count, row_count)
    i64* picks;            // [tokens, width]
};

// picks of every token.
PS_EXPORT void ps_select(const ps_index* a, i64 threads);

// What stays the same from call to call.
struct ps_attention {
    const float* sinks;  // [heads]: a score that takes part in the softmax and has no value
    i64 heads, dim;
    i64 window_size;  // a token sees that many raw rows, its own included
    i64 ratio;        // tokens per compressed row
    i64 half;         // pairs of channels that are rotated back in the end
};

struct ps_attention_call {
    const float* q;  // [tokens, heads, dim]
    i64 tokens, position;
    const ps_ring* ring;   // raw rows of positions before `begun`, and of the rest too unless there are
    const void* fresh;     // [position + tokens - begun, dim] or null: raw rows from `begun` on
    i64 begun;             // <= position
    const void* rows;      // [row_count, dim] or null: compressed rows
    i64 rows_stride, rows_kind, row_count;
    const i64* visible;    // [tokens] or null: token t sees the first visible[t] compressed rows (null: as many as
                           // windows of `ratio` tokens have ended by then),
    const i64* picks;      // [tokens, picks_width] or null: or, where this is given, these; negative: none
    i64 picks_width;
    const float *cos, *sin;  // [tokens, half] or null: no rotation back
    float* out;              // [tokens, heads, dim]
};

PS_EXPORT void ps_attend(const ps_attention* a, const ps_attention_call* c, i64 threads);

struct ps_output {
    const ps_weight *out_a, *out_b;
    i64 groups;
};

// Heads' results [rows, groups · columns] → out_a, group by group → out_b → out [rows, hidden]
PS_EXPORT void ps_output_run(const ps_output* o, const float* x, i64 rows, float* out, i64 threads);

// All steps of a layer.
struct ps_attention_layer {
    const ps_projections* inputs;
    const ps_queries* queries;
    const ps_keys* keys;
    const ps_compressor *compressor, *index_compressor;  // null where a layer has none
    const ps_attention* attention;
    const ps_output* output;
    i64 gates_column, topk;  // the indexer's: where its heads' weights stand, and how many rows it picks
};

// What one sequence remembers for a compressor.
struct ps_compressor_state {
    const ps_ring* frontier;
    float* fresh;  // see ps_compress
    i64 kept;
    void* rows;
    i64 rows_kind;
};

// One sequence's rows [start, start + count) of a batch, and what it remembers.
struct ps_sequence_state {
    i64 start, count, position;
    const ps_ring* window;
    void* fresh;  // see ps_keys_run
    ps_compressor_state compressed, index;
};

// x, out [rows, hidden]; cos, sin [rows, half].
PS_EXPORT void ps_attention_layer_run(const ps_attention_layer* l, const ps_sequence_state* const* sequences,
                                      i64 sequence_count, const float* x, i64 rows, const float* cos,
                                      const float* sin, float* out, i64 threads);
