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

    // The best, in no particular order; there must have been at least `count` offers.
    const u64* finish() {
        if (size_ > count_) prune();
        return ranks_;
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

// 8-byte words of scratch that ps_select needs.
PS_EXPORT i64 ps_select_scratch(i64 heads, i64 dim, i64 count) {
    return count + SPARE + BLOCK * (padded(dim) + padded(heads)) / 2;
}

// picks[t] for tokens [first_token, last_token): the best min(count, visible[t]) of the visible rows, ties to the
// lower row, in rising order, then −1.  Takes time in proportion to the visible rows and memory to `count`.
PS_KERNEL void ps_select(const ps_index* a, i64 first_token, i64 last_token, void* scratch) {
    u64* ranks = static_cast<u64*>(scratch);
    float* block = reinterpret_cast<float*>(ranks + a->count + SPARE);
    float* hits = block + BLOCK * padded(a->dim);
    for (i64 i = 0; i < BLOCK * padded(a->heads); i++) hits[i] = 0;
    for (i64 t = first_token; t < last_token; t++) {
        i64* picks = a->picks + t * a->width;
        i64 visible = a->visible[t] < a->row_count ? a->visible[t] : a->row_count;
        if (visible <= a->count) {  // everything is chosen: no scores needed
            for (i64 i = 0; i < a->width; i++) picks[i] = i < visible ? i : -1;
            continue;
        }
        Best best(ranks, a->count);
        for (i64 first = 0; first < visible; first += BLOCK) {
            float scores[BLOCK];
            i64 count = visible - first < BLOCK ? visible - first : BLOCK;
            score(*a, t, first, count, block, hits, scores);
            for (i64 i = 0; i < count; i++) best.offer(rank(scores[i], static_cast<u32>(first + i)));
        }
        const u64* chosen = best.finish();
        for (i64 i = 0; i < a->count; i++) picks[i] = ranked_id(chosen[i]);
        std::sort(picks, picks + a->count);
    }
}
