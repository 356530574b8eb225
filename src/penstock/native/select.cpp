// The indexer's choice: the rows with the highest scores.
#include <algorithm>
#include <bit>

#include "kernels.h"
#include "order.h"
#include "share.h"
#include "step_bytes.h"
#include "step_kernels.h"
#include "workspace.h"

constexpr i64 SCORE_BLOCK = 48;  // rows that are scored at a time
constexpr i64 DIVIDED = 20000;   // nanoseconds from which on a token's rows are divided among threads
constexpr i64 SPARE = 4096;  // candidates kept beyond `count` before the worst are thrown out

constexpr int BUCKETS_LOG = 8;

// A number that exactly `count` of so many different ranks reach, fewer than there are.  Ranks are counted in buckets of
// equal width, then those in the bucket that the last of the best is in, until its border tells: nothing is compared that
// a processor would have to guess, as sorting does.
static u64 floor_of_best(const u64* ranks, i64 size, i64 count) {
    u64 low = ~u64{0}, high = 0;
    for (i64 i = 0; i < size; i++) low = std::min(low, ranks[i]), high = std::max(high, ranks[i]);
    for (;;) {
        const int shift = std::max(0, static_cast<int>(std::bit_width(high - low)) - BUCKETS_LOG);
        i64 held[1 << BUCKETS_LOG] = {};
        for (i64 i = 0; i < size; i++)
            if (const u64 above = ranks[i] - low; above <= high - low) held[above >> shift]++;
        u64 bucket = (high - low) >> shift;
        for (; held[bucket] < count; bucket--) count -= held[bucket];
        if (held[bucket] == count) return low + (bucket << shift);
        const u64 next = low + (bucket << shift);
        high = std::min(high, next + ((u64{1} << shift) - 1)), low = next;
    }
}

// Those that reach `floor`, in their order.
static i64 keep_from(u64 floor, u64* ranks, i64 size) {
    i64 kept = 0;
    for (i64 i = 0; i < size; i++) {
        const u64 rank = ranks[i];
        ranks[kept] = rank;
        kept += rank >= floor;
    }
    return kept;
}

// The best `count` of a stream of ranks, in its order, in memory for `count` + SPARE of them.
class Best {
  public:
    Best(u64* ranks, i64 count) : ranks_(ranks), count_(count) {}

    void offer(u64 rank) {
        if (rank < floor_) return;
        ranks_[size_++] = rank;
        if (size_ == count_ + SPARE) prune();
    }

    // How many were kept: all that were offered, or the best `count` of them.
    i64 finish() {
        if (size_ > count_) prune();
        return size_;
    }

  private:
    void prune() {
        floor_ = floor_of_best(ranks_, size_, count_);
        size_ = keep_from(floor_, ranks_, size_);
    }

    u64* ranks_;
    i64 count_, size_ = 0;
    u64 floor_ = 0;
};

PS_INLINE i64 visible_rows(const ps_index& a, i64 token) {
    const i64 visible = a.visible ? a.visible[token] : (a.position + token + 1) / a.ratio;
    return visible < a.row_count ? visible : a.row_count;
}

static constexpr i64 rank_floats(i64 ranks) { return ranks * static_cast<i64>(sizeof(u64) / sizeof(float)); }

i64 select_piece_floats(i64 topk, i64 heads, i64 dim) {
    return rank_floats(topk + SPARE) + SCORE_BLOCK * (padded(dim) + padded(heads));
}

i64 select_floats(i64 topk, i64 parts) { return rank_floats(parts * topk); }

i64 select_parts(i64 threads) { return 2 * threads; }

// First half of a selection, for one token and part `part` of `parts` of its visible rows: the ranks of the best
// `count` rows of that part, at out, zeros behind them if there are fewer.  Takes time in proportion to the visible
// rows and memory to `count`.
static void rank_rows(const ps_index& a, i64 token, i64 part, i64 parts, u64* out) {
    float* scratch = workspace<IN_A_PIECE>(select_piece_floats(a.count, a.heads, a.dim));
    u64* kept = reinterpret_cast<u64*>(scratch);
    float* block = scratch + rank_floats(a.count + SPARE);
    float* hits = block + SCORE_BLOCK * padded(a.dim);
    for (i64 i = 0; i < SCORE_BLOCK * padded(a.heads); i++) hits[i] = 0;
    const i64 visible = visible_rows(a, token), end = visible * (part + 1) / parts;
    Best best(kept, a.count);
    for (i64 first = visible * part / parts; first < end; first += SCORE_BLOCK) {
        float scores[SCORE_BLOCK];
        i64 count = end - first < SCORE_BLOCK ? end - first : SCORE_BLOCK;
        kernels().steps.score_rows(a, token, first, count, block, hits, scores);
        for (i64 i = 0; i < count; i++) best.offer(rank(scores[i], static_cast<u32>(first + i)));
    }
    i64 found = best.finish();
    for (i64 i = 0; i < a.count; i++) out[i] = i < found ? kept[i] : 0;
}

// Second half: picks are the best `count` of the visible rows, of which there are more, ties to the lower row, in rising
// order.  Ranks order all rows, so how they were parted cannot show.  Overwrites ranks.
static void pick_rows(const ps_index& a, i64 token, i64 parts, u64* ranks) {
    i64* picks = a.picks + token * a.width;
    i64 size = keep_from(1, ranks, parts * a.count);  // parts may have had fewer
    if (size > a.count) size = keep_from(floor_of_best(ranks, size, a.count), ranks, size);
    for (i64 i = 0; i < size; i++) picks[i] = ranked_id(ranks[i]);
}

// Tokens that would leave a thread without one are divided, if they take long enough.
PS_EXPORT void ps_select(const ps_index* a, i64 threads) {
    if (a->tokens <= 0 || a->width <= 0) return;
    const i64 token_time = a->row_count * a->heads * a->dim / 20;  // nanoseconds, roughly
    threads = std::min(threads, 1 + a->tokens * token_time / 4000);
    auto everything = [&](i64 token) {  // where all visible rows are chosen no scores are needed
        const i64 visible = visible_rows(*a, token);
        if (visible > a->count) return false;
        for (i64 i = 0; i < a->width; i++) a->picks[token * a->width + i] = i < visible ? i : -1;
        return true;
    };
    const i64 whole = token_time < DIVIDED ? a->tokens : whole_pieces(a->tokens, threads);
    parallel_for(whole, threads, [&](i64 token) {
        if (everything(token)) return;
        u64* ranks = reinterpret_cast<u64*>(workspace<BETWEEN_STEPS>(select_floats(a->count, 1)));
        rank_rows(*a, token, 0, 1, ranks);
        pick_rows(*a, token, 1, ranks);
    });
    for (i64 token = whole; token < a->tokens; token++) {
        if (everything(token)) continue;
        const i64 parts = select_parts(threads);
        u64* ranks = reinterpret_cast<u64*>(workspace<BETWEEN_STEPS>(select_floats(a->count, parts)));
        parallel_for(parts, threads, [&](i64 part) { rank_rows(*a, token, part, parts, ranks + part * a->count); });
        pick_rows(*a, token, parts, ranks);
    }
}
