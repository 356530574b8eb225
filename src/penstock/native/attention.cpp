// Attention with shared key/value rows and a sink.
//
// A token's visible rows are taken in order, window first, in blocks of BLOCK that are made float32 once and then
// serve all heads.  The softmax is kept up to date from block to block: when a block brings a new highest score, what
// was added up so far is scaled down to it.  Blocks are counted from the token's own first visible row, so the order
// of every sum is a matter of that token alone.
#include "dot.h"
#include "rows.h"

constexpr i64 BLOCK = 32;
static_assert(BLOCK % LANES == 0);

struct ps_attention {
    const float* q;  // [tokens, heads, dim]
    i64 heads, dim;
    const float* sinks;  // [heads]: a score that takes part in the softmax and has no value
    const void* window;  // [earlier + tokens, dim]; token t sees the last window_size rows up to its own
    i64 window_stride, window_kind, earlier, window_size;
    const void* rows;  // [row_count, dim] or null: compressed rows
    i64 rows_stride, rows_kind, row_count;
    const i64* visible;  // [tokens]: token t sees the first visible[t] compressed rows,
    const i64* picks;    // [tokens, picks_width] or null: or, where this is given, these; negative: none
    i64 picks_width;
    float* out;  // [tokens, heads, dim]
};

// What has been added up so far for each head.
struct Sums {
    float* value;   // [heads, padded dim]
    float* weight;  // [heads]
    float* top;     // [heads]: the highest score yet, which all weights are relative to
};

// Makes `count` scores of one head into weights, in place, and brings the head's sums to the new highest score.
// scores has room for padded(count).
PS_INLINE void weigh(float* scores, i64 count, float scale, float* value, i64 width, float& weight, float& top) {
    for (i64 i = count; i < padded(count); i++) scores[i] = -INFINITY;
    vf highest = splat(top);
    for (i64 i = 0; i < count; i += LANES) {
        vf s = load(scores + i) * scale;
        store(scores + i, s);
        highest = larger(s, highest);
    }
    float peak = highest[0];
    for (i64 lane = 1; lane < LANES; lane++) peak = highest[lane] > peak ? highest[lane] : peak;
    if (peak > top) {
        float shrink = exponential(top - peak);
        for (i64 d = 0; d < width; d += LANES) store(value + d, load(value + d) * shrink);
        weight *= shrink;
        top = peak;
    }
    vf sum = {};
    for (i64 i = 0; i < count; i += LANES) {
        vf e = exponential(load(scores + i) - peak);
        store(scores + i, e);
        sum += e;
    }
    weight += sum_lanes(sum);
}

// value[h] += weights[h, i] · block[i] for H heads, rows in order.
template <int H>
PS_INLINE void add_values(const float* weights, const float* block, i64 count, i64 width, float* value) {
    for (i64 d = 0; d < width; d += LANES) {
        vf sum[H];
#pragma GCC unroll 8
        for (int h = 0; h < H; h++) sum[h] = load(value + h * width + d);
        for (i64 i = 0; i < count; i++) {
            vf v = load(block + i * width + d);
#pragma GCC unroll 8
            for (int h = 0; h < H; h++) sum[h] += weights[h * BLOCK + i] * v;
        }
#pragma GCC unroll 8
        for (int h = 0; h < H; h++) store(value + h * width + d, sum[h]);
    }
}

PS_INLINE void attend_token(const ps_attention& a, i64 token, i64 first_head, i64 heads, float* scratch) {
    const i64 dim = a.dim, width = padded(dim);
    const float* q = a.q + (token * a.heads + first_head) * dim;
    float* block = scratch;                // [BLOCK, width]
    float* scores = block + BLOCK * width;  // [heads, BLOCK]
    Sums sums{scores + heads * BLOCK, scores + heads * (BLOCK + width), scores + heads * (BLOCK + width + 1)};
    for (i64 i = 0; i < heads * width; i++) sums.value[i] = 0;
    for (i64 h = 0; h < heads; h++) {
        sums.weight[h] = 1;
        sums.top[h] = a.sinks[first_head + h];
    }

    const Rows window{a.window, a.window_stride, a.window_kind}, rows{a.rows, a.rows_stride, a.rows_kind};
    const i64 last = a.earlier + token;
    const i64 first = last + 1 > a.window_size ? last + 1 - a.window_size : 0;
    i64 compressed = 0;
    if (a.rows) {
        i64 seen = a.visible[token] < a.row_count ? a.visible[token] : a.row_count;
        compressed = a.picks ? a.picks_width : seen > 0 ? seen : 0;
    }
    const i64 slots = last + 1 - first + compressed;
    const float scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(dim)));
    for (i64 slot = 0; slot < slots;) {
        i64 count = 0;
        for (; slot < slots && count < BLOCK; slot++) {
            i64 beyond = slot - (last + 1 - first);
            if (beyond < 0) {
                widen(window, first + slot, dim, block + count++ * width);
                continue;
            }
            i64 row = a.picks ? a.picks[token * a.picks_width + beyond] : beyond;
            if (row >= 0) widen(rows, row, dim, block + count++ * width);
        }
        if (count == 0) break;
        dot_all(q, dim, heads, block, width, count, dim, scores, BLOCK);
        for (i64 h = 0; h < heads; h++)
            weigh(scores + h * BLOCK, count, scale, sums.value + h * width, width, sums.weight[h], sums.top[h]);
        i64 h = 0;
        for (; h + 8 <= heads; h += 8)
            add_values<8>(scores + h * BLOCK, block, count, width, sums.value + h * width);
        for (; h < heads; h++) add_values<1>(scores + h * BLOCK, block, count, width, sums.value + h * width);
    }

    float* out = a.out + (token * a.heads + first_head) * dim;
    for (i64 h = 0; h < heads; h++)
        for (i64 d = 0; d < dim; d += LANES)
            store(out + h * dim + d, load(sums.value + h * width + d) / sums.weight[h], dim - d);
}

// Floats of scratch that ps_attend needs for up to `heads` heads.
PS_EXPORT i64 ps_attend_scratch(i64 heads, i64 dim) { return BLOCK * padded(dim) + heads * (BLOCK + padded(dim) + 2); }

// Tokens [first_token, last_token), heads [first_head, last_head).
PS_KERNEL void ps_attend(const ps_attention* a, i64 first_token, i64 last_token, i64 first_head, i64 last_head,
                         float* scratch) {
    for (i64 t = first_token; t < last_token; t++) attend_token(*a, t, first_head, last_head - first_head, scratch);
}
