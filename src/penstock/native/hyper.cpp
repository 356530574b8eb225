#include "hyper.h"

#include "kernels.h"
#include "share.h"
#include "step_bytes.h"
#include "step_kernels.h"
#include "workspace.h"

constexpr i64 NORMED_ROWS = 64;  // rows of normed streams at a time: they are large

static i64 normed_floats(i64 rows, i64 size, i64 out) { return std::min(rows, NORMED_ROWS) * (size + out); }

i64 hyper_floats(const ps_step_sizes& s, i64 rows) {
    return normed_floats(rows, s.streams * s.hidden, (2 + s.streams) * s.streams);
}

// Streams of `size` floats → norm → fn; then body(first row, count, fn's results [count, fn rows]), some rows at a time.
template <class Body>
static void project_normed(const ps_weight* fn, const float* streams, i64 size, float eps, i64 rows, i64 threads,
                           Body&& body) {
    for (i64 from = 0; from < rows; from += NORMED_ROWS) {
        const i64 count = std::min(NORMED_ROWS, rows - from);
        float *normed = workspace<BETWEEN_STEPS>(normed_floats(count, size, fn->rows)), *out = normed + count * size;
        over_rows(count, size / 8, threads, [&](i64 a, i64 b) {
            kernels().steps.norm_rows(streams + from * size, nullptr, a, b, size, eps, normed);
        });
        ps_products(&fn, 1, normed, size, count, &out, &fn->rows, threads);
        body(from, count, out);
    }
}

PS_EXPORT void ps_hyper_leave(const float* y, float* streams, const float* mix, i64 rows, i64 n, i64 hidden,
                              i64 threads) {
    over_rows(rows, n * hidden / 4, threads,
              [&](i64 a, i64 b) { kernels().steps.leave_rows(y, streams, mix, a, b, n, hidden); });
}

// A stored fn multiplies the streams as they are and the results are scaled: one pass less over them.
PS_EXPORT void ps_hyper_enter(const ps_hyper* h, const float* y, const float* before, float* streams, i64 rows,
                              float* x, float* mix, i64 threads) {
    if (y) ps_hyper_leave(y, streams, before, rows, h->streams, h->hidden, threads);
    const i64 size = h->streams * h->hidden, width = (2 + h->streams) * h->streams;
    const bool normed = h->fn->type == W_DECODED;
    if (normed)
        project_normed(h->fn, streams, size, h->rms_eps, rows, threads, [&](i64 from, i64 count, const float* mixes) {
            std::copy_n(mixes, count * width, mix + from * width);
        });
    else
        ps_products(&h->fn, 1, streams, size, rows, &mix, &width, threads);
    // Weights of several tokens are found in the time of one: where streams are short they stay together.
    const i64 together = size < 4096 ? 8 : 1, pieces = (rows + together - 1) / together;
    over_rows(pieces, 1000 + together * (size / 4), threads, [&](i64 a, i64 b) {
        kernels().steps.enter_rows(*h, normed, streams, a * together, std::min(rows, b * together), x, mix);
    });
}

PS_EXPORT void ps_head_input(const ps_head* h, const float* streams, i64 rows, float* x, i64 threads) {
    const i64 size = h->streams * h->hidden;
    project_normed(h->fn, streams, size, h->rms_eps, rows, threads, [&](i64 from, i64 count, const float* mixes) {
        over_rows(count, size / 4, threads, [&](i64 a, i64 b) {
            kernels().steps.head_rows(*h, mixes, streams + from * size, a, b, x + from * h->hidden);
        });
    });
}
