// Compressors: a segment's tokens join the frontier, and every window they complete becomes a row.
#include "kernels.h"
#include "share.h"
#include "step_bytes.h"
#include "step_kernels.h"
#include "workspace.h"

// Behind those, the tokens of a window and of the one before.
i64 compress_piece_floats(i64 dim, i64 half, i64 ratio) {
    return compressed_row_floats(dim, half) + 2 * ratio * static_cast<i64>(sizeof(Candidate) / sizeof(float));
}

static void keep_rows(const CompressTask& t, i64 first, i64 last, float* to, i64 skip) {
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
    const CompressTask task{*c, projected, stride, position, *frontier, rows, rows_kind};
    const i64 first = position / c->ratio, windows = (position + count) / c->ratio - first;
    over_rows(windows, 2 * c->ratio * c->dim, threads, [&](i64 a, i64 b) {
        float* memory = workspace<IN_A_PIECE>(compress_piece_floats(c->dim, c->half, c->ratio));
        for (i64 w = a; w < b; w++) kernels().steps.compress_window(task, first + w, memory);
    });
    over_rows(kept, c->width / 4, threads,
              [&](i64 a, i64 b) { keep_rows(task, count - kept + a, count - kept + b, fresh, count - kept); });
}
