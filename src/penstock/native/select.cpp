// The indexer's choice: the rows with the highest scores.
#include <algorithm>
#include <functional>

#include "dot.h"
#include "order.h"
#include "rows.h"

constexpr i64 BLOCK = 48;
constexpr i64 SPARE = 4096;  // candidates kept beyond `count` before the worst are thrown out

struct ps_index {
    const float* q;      // [tokens, heads, dim]
    const float* gates;  // [tokens, heads]
    i64 heads, dim;
    const void* rows;  // [row_count, dim]
    i64 rows_stride, rows_kind, row_count;
    const i64* visible;  // [tokens]: token t sees the first visible[t] rows
    i64 count, width;    // rows wanted; width of picks: min(count, row_count)
    i64* picks;          // [tokens, width]
};

// The best `count` of a stream of ranks, in memory for `count` + SPARE of them.
class Best {
  public:
    Best(u64* ranks, i64 count) : ranks_(ranks), count_(count) {}

    void offer(u64 rank) {
        if (rank < floor_) return;
        ranks_[size_++] = rank;
        if (size_ == count_ + SPARE) prune();
    }

    // How many were kept, in no particular order: all that were offered, or the best `count` of them.
    i64 finish() {
        if (size_ > count_) prune();
        return size_;
    }

  private:
    void prune() {
        std::nth_element(ranks_, ranks_ + count_ - 1, ranks_ + size_, std::greater<>());
        floor_ = ranks_[count_ - 1];
        size_ = count_;
    }

    u64* ranks_;
    i64 count_, size_ = 0;
    u64 floor_ = 0;
};

PS_INLINE i64 visible_rows(const ps_index& a, i64 token) {
    return a.visible[token] < a.row_count ? a.visible[token] : a.row_count;
}

// Scores of rows [first, first + count): the sum over heads of gate · max(0, q · row).
// block [BLOCK, padded dim]; hits [BLOCK, padded heads], zeros behind the heads.
PS_INLINE void score(const ps_index& a, i64 token, i64 first, i64 count, float* block, float* hits, float* scores) {
    const i64 width = padded(a.dim), heads = padded(a.heads);
    const float* gates = a.gates + token * a.heads;
    const Rows rows{a.rows, a.rows_stride, a.rows_kind};
    for (i64 i = 0; i < count; i++) widen(rows, first + i, a.dim, block + i * width);
    dot_all(block, width, count, a.q + token * a.heads * a.dim, a.dim, a.heads, a.dim, hits, heads);
    for (i64 i = 0; i < count; i++) {
        vf sum = {};
        for (i64 h = 0; h < a.heads; h += LANES)
            sum += load(gates + h, a.heads - h) * larger(load(hits + i * heads + h), vf{});
        scores[i] = sum_lanes(sum);
    }
}

// 8-byte words of scratch that ps_select_rank needs.
PS_EXPORT i64 ps_select_scratch(i64 heads, i64 dim, i64 count) {
    return count + SPARE + BLOCK * (padded(dim) + padded(heads)) / 2;
}

// First half of a selection, for tokens [first_token, last_token) and part `part` of `parts` of each one's visible
// rows: the ranks of the best `count` rows of that part, at ranks[token, part], zeros behind them if there are fewer.
// ranks: [tokens, parts, count].  Takes time in proportion to the visible rows and scratch to `count`.
PS_KERNEL void ps_select_rank(const ps_index* a, i64 first_token, i64 last_token, i64 part, i64 parts, u64* ranks,
                              void* scratch) {
    u64* kept = static_cast<u64*>(scratch);
    float* block = reinterpret_cast<float*>(kept + a->count + SPARE);
    float* hits = block + BLOCK * padded(a->dim);
    for (i64 i = 0; i < BLOCK * padded(a->heads); i++) hits[i] = 0;
    for (i64 t = first_token; t < last_token; t++) {
        i64 visible = visible_rows(*a, t);
        if (visible <= a->count) continue;  // everything is chosen: no scores needed
        i64 end = visible * (part + 1) / parts;
        Best best(kept, a->count);
        for (i64 first = visible * part / parts; first < end; first += BLOCK) {
            float scores[BLOCK];
            i64 count = end - first < BLOCK ? end - first : BLOCK;
            score(*a, t, first, count, block, hits, scores);
            for (i64 i = 0; i < count; i++) best.offer(rank(scores[i], static_cast<u32>(first + i)));
        }
        i64 found = best.finish();
        u64* out = ranks + (t * parts + part) * a->count;
        for (i64 i = 0; i < a->count; i++) out[i] = i < found ? kept[i] : 0;
    }
}

// Second half, for all `tokens`: picks[t] are the best min(count, visible[t]) of the visible rows, ties to the lower
// row, in rising order, then −1.  Ranks order all rows, so how they were parted cannot show.  Reorders ranks.
PS_EXPORT void ps_select_pick(const ps_index* a, i64 tokens, i64 parts, u64* ranks) {
    for (i64 t = 0; t < tokens; t++, ranks += parts * a->count) {
        i64* picks = a->picks + t * a->width;
        i64 visible = visible_rows(*a, t);
        if (visible <= a->count) {
            for (i64 i = 0; i < a->width; i++) picks[i] = i < visible ? i : -1;
            continue;
        }
        std::nth_element(ranks, ranks + a->count - 1, ranks + parts * a->count, std::greater<>());
        for (i64 i = 0; i < a->count; i++) picks[i] = ranked_id(ranks[i]);
        std::sort(picks, picks + a->count);
    }
}
