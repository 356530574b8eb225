// Compressors: a segment's tokens join the frontier, and every window they complete becomes a row.
#include "low_precision.h"
#include "norm.h"
#include "pool.h"
#include "share.h"
#include "step_bytes.h"
#include "steps.h"
#include "workspace.h"

namespace {

struct Task {
    const ps_compressor& c;
    const float* projected;  // [count, stride]
    i64 stride, position;
    const ps_ring& frontier;  // [value | score] of positions before `position`
    void* rows;
    i64 rows_kind;

    // The token at position p, channels from `column` on.
    Candidate candidate(i64 p, i64 column) const {
        if (p < position) {
            const float* row = static_cast<const float*>(frontier.data) + p % frontier.capacity * frontier.width;
            return {row + column, row + c.width + column, nullptr};
        }
        const float* row = projected + (p - position) * stride + column;
        return {row + c.value_column, row + c.score_column, c.ape + p % c.ratio * c.width + column};
    }
};

// The row that a window becomes, and the cos and sin it is rotated by.
i64 row_floats(i64 dim, i64 half) { return padded(dim) + padded(2 * half); }

}  // namespace

// Behind those, the tokens of a window and of the one before.
i64 compress_piece_floats(i64 dim, i64 half, i64 ratio) {
    return row_floats(dim, half) + 2 * ratio * static_cast<i64>(sizeof(Candidate) / sizeof(float));
}

PS_DISPATCH void compress_window(const Task& t, i64 window, float* row) {
    const ps_compressor& c = t.c;
    const i64 begin = window * c.ratio;
    Candidate* list = reinterpret_cast<Candidate*>(row + row_floats(c.dim, c.half));
    i64 count = 0;
    if (c.width > c.dim) {  // the window before speaks through the first series, this one through the second
        for (i64 p = begin - c.ratio; window > 0 && p < begin; p++) list[count++] = t.candidate(p, 0);
        for (i64 p = begin; p < begin + c.ratio; p++) list[count++] = t.candidate(p, c.dim);
    } else {
        for (i64 p = begin; p < begin + c.ratio; p++) list[count++] = t.candidate(p, 0);
    }
    float *cos = row + padded(c.dim), *sin = cos + c.half;
    pool_window(list, count, c.dim, row);
    norm_row(row, c.norm, c.dim, c.eps, row);
    for (i64 i = 0; i < c.half; i++) {  // a row stands at its window's first position
        const double angle = static_cast<double>(begin) * static_cast<double>(c.frequencies[i]);
        cos[i] = static_cast<float>(std::cos(angle));
        sin[i] = static_cast<float>(std::sin(angle));
    }
    rotate_pairs(row + c.dim - 2 * c.half, cos, sin, c.half, 1.0f);
    if (c.low_precision == 1) round_fp8(row, c.dim - 2 * c.half, KEY_GROUP);
    if (c.low_precision == 2) {
        hadamard(row, c.dim);
        round_fp4(row, c.dim, INDEX_GROUP);
    }
    narrow(row, c.dim, t.rows_kind, row_at(t.rows, window, c.dim, t.rows_kind));
}

PS_DISPATCH void keep_rows(const Task& t, i64 first, i64 last, float* to, i64 skip) {
    const ps_compressor& c = t.c;
    for (i64 r = first; r < last; r++) {
        const Candidate from = t.candidate(t.position + r, 0);
        float* out = to ? to + (r - skip) * 2 * c.width
                        : static_cast<float*>(t.frontier.data) +
                              (t.position + r) % t.frontier.capacity * t.frontier.width;
        for (i64 d = 0; d < c.width; d += LANES) {
            store(out + d, load(from.values + d, c.width - d), c.width - d);
            store(out + c.width + d, score_of(from, d, c.width - d), c.width - d);
        }
    }
}

PS_EXPORT void ps_compress(const ps_compressor* c, const float* projected, i64 stride, i64 count, i64 position,
                           const ps_ring* frontier, float* fresh, i64 kept, void* rows, i64 rows_kind, i64 threads) {
    const Task task{*c, projected, stride, position, *frontier, rows, rows_kind};
    const i64 first = position / c->ratio, windows = (position + count) / c->ratio - first;
    over_rows(windows, 2 * c->ratio * c->dim, threads, [&](i64 a, i64 b) {
        float* memory = workspace<IN_A_PIECE>(compress_piece_floats(c->dim, c->half, c->ratio));
        for (i64 w = a; w < b; w++) compress_window(task, first + w, memory);
    });
    over_rows(kept, c->width / 4, threads,
              [&](i64 a, i64 b) { keep_rows(task, count - kept + a, count - kept + b, fresh, count - kept); });
}
