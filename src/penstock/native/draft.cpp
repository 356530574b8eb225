// A guess takes a tenth of a millisecond in a small model, so that calling its dozen steps one by one from outside would
// take longer than the steps do.
#include "draft.h"

#include <algorithm>

#include "encode.h"
#include "kernels.h"
#include "step_kernels.h"

PS_EXPORT void ps_rms_norm(const float* x, const float* weight, i64 rows, i64 dim, float eps, float* out, i64 threads);
PS_EXPORT void ps_angles(const i64* positions, const float* frequencies, i64 rows, i64 half, float* cos, float* sin,
                         i64 threads);

namespace {

// The results between the steps, in the caller's memory.
struct Places {
    i64 floats = 0;
    i64 embedded, streams, both, joined, x, mix, cos, sin, keys, y, weights, logits;

    Places(const ps_draft& d, i64 rows, i64 vocabulary)
        : embedded(add(rows * d.head->hidden)),
          streams(add(rows * all(d))),
          both(add(d.both ? 2 * rows * all(d) : rows * d.head->hidden)),
          joined(add(rows * all(d))),
          x(add(rows * d.head->hidden)),
          mix(add(rows * (2 + d.head->streams) * d.head->streams)),
          cos(add(rows * d.keys->half)),
          sin(add(rows * d.keys->half)),
          keys(add(rows * d.keys->dim)),
          y(add(d.head->hidden)),
          weights(add(d.router->count)),
          logits(add(vocabulary)) {}

  private:
    static i64 all(const ps_draft& d) { return d.head->streams * d.head->hidden; }
    i64 add(i64 count) {
        const i64 at = floats;
        floats += (count + 15) / 16 * 16;
        return at;
    }
};

// Streams and the tokens after them → the block's input `joined`, which may be where the streams are.
void join(const ps_draft& d, const Places& at, const float* streams, const i64* tokens, i64 rows, float* memory, float* joined,
          i64 threads) {
    const i64 n = d.head->streams, hidden = d.head->hidden;
    float *e = memory + at.embedded, *h = memory + at.streams, *both = memory + at.both;
    for (i64 r = 0; r < rows; r++) encoders_of(kernels()).decode(*d.embedding, tokens[r], e + r * hidden);
    ps_rms_norm(e, d.embedding_norm, rows, hidden, d.eps, e, threads);
    ps_rms_norm(streams, d.stream_norm, rows * n, hidden, d.eps, h, threads);
    if (d.both) {
        for (i64 i = 0; i < rows * n; i++) {
            std::copy_n(e + i / n * hidden, hidden, both + 2 * i * hidden);
            std::copy_n(h + i * hidden, hidden, both + (2 * i + 1) * hidden);
        }
        ps_products(&d.both, 1, both, 2 * hidden, rows * n, &joined, &hidden, threads);
        return;
    }
    ps_products(&d.of_embedding, 1, e, hidden, rows, &both, &hidden, threads);
    ps_products(&d.of_streams, 1, h, hidden, rows * n, &joined, &hidden, threads);
    for (i64 i = 0; i < rows * n; i++)
        for (i64 c = 0; c < hidden; c++) joined[i * hidden + c] += both[i / n * hidden + c];
}

}  // namespace

PS_EXPORT i64 ps_draft_floats(const ps_draft* d, i64 rows, i64 vocabulary) { return Places(*d, rows, vocabulary).floats; }

PS_EXPORT i64 ps_draft_run(const ps_draft* d, const ps_expert* const* table, i64 experts, const ps_weight* output,
                           const ps_sequence_state* state, const float* streams, const i64* tokens, i64 rows, i64 most,
                           float least, i64* guesses, float* chances, i64* ids, float* memory, i64 threads) {
    const i64 n = d->head->streams, hidden = d->head->hidden, half = d->keys->half, slots = d->router->count;
    const i64 vocabulary = output->rows;
    const Places at(*d, rows, vocabulary);
    float *joined = memory + at.joined, *x = memory + at.x, *mix = memory + at.mix, *y = memory + at.y;
    float *cos = memory + at.cos, *sin = memory + at.sin, *keys = memory + at.keys, *logits = memory + at.logits;
    ps_sequence_state s = *state;
    s.start = 0;
    s.count = 1;
    s.fresh = nullptr;
    const ps_sequence_state* const own = &s;
    i64 count = 0;
    for (float all_right = 1; count < most && all_right >= least; count++) {
        join(*d, at, streams, tokens, rows, memory, joined, threads);
        ps_hyper_enter(d->attention_hyper, nullptr, nullptr, joined, rows, x, mix, threads);
        for (i64 r = 0; r < rows; r++) {
            const i64 position = s.position + r;
            ps_angles(&position, d->frequencies, 1, half, cos + r * half, sin + r * half, 1);
        }
        // Only of the last row more is wanted than its place in the window.
        const i64 last = rows - 1;
        if (last) {
            ps_project(d->kv, x, last, keys, threads);
            ps_keys_run(d->keys, keys, d->keys->dim, cos, sin, last, s.window, nullptr, s.position, threads);
        }
        s.position += last;
        float *lane = joined + last * n * hidden, *in = x + last * hidden, *own_mix = mix + last * (2 + n) * n;
        ps_attention_layer_run(d->attention, &own, 1, in, 1, cos + last * half, sin + last * half, y, threads);
        // `enter` reads the mix before it writes the next one to the same place.
        ps_hyper_enter(d->experts_hyper, y, own_mix, lane, 1, in, own_mix, threads);
        ps_route_rows(d->router, in, tokens + last, 1, ids + count * slots, memory + at.weights, threads);
        ps_experts(table, experts, ids + count * slots, memory + at.weights, slots, d->limit, d->shared, d->shared_limit, in,
                   1, y, 0, threads);
        ps_hyper_leave(y, lane, own_mix, 1, n, hidden, threads);
        ps_head_input(d->head, lane, 1, in, threads);
        ps_products(&output, 1, in, hidden, 1, &logits, &vocabulary, threads);
        float top;
        guesses[count] = std::max<i64>(0, kernels().steps.logits_top(logits, vocabulary, &top));
        chances[count] = static_cast<float>(1.0 / kernels().steps.weigh_logits(logits, vocabulary, top, 1.0f, nullptr));
        all_right *= chances[count];
        streams = lane;
        tokens = guesses + count;
        rows = 1;
        s.position++;
    }
    return count;
}
