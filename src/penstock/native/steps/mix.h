// Hyper-connections, row by row: the streams' mixing weights, and what they are weighted into.
#pragma once

#include <algorithm>

#include "../norm.h"
#include "../step_kernels.h"

namespace {

// Mixing weights of one token, for n <= MAX_STREAMS streams, from its projected streams times `factor`.
// mixes [2n + n²]: n for pre, n for post, then source × destination; base [2n + n²]; scale [3], one for each.
// pre = sigmoid + eps; post = 2 · sigmoid; comb = softmax over destinations + eps, and then `sinkhorn`.
// pre, post [n]; comb [n, n], each `apart` from the next.
PS_INLINE void begin_mix(const float* mixes, float factor, const float* base, const float* scale, i64 n, float eps,
                         float* pre, float* post, float* comb, i64 apart) {
    float in[padded((2 + MAX_STREAMS) * MAX_STREAMS)];
    for (i64 i = 0; i < (2 + n) * n; i++) {
        const float mixed = mixes[i] * factor;
        in[i] = __builtin_fmaf(mixed, scale[i < n ? 0 : i < 2 * n ? 1 : 2], base[i]);
    }
    for (i64 i = 0; i < n; i += LANES) {
        store(pre + i, sigmoid(load(in + i, n - i)) + eps, n - i);
        store(post + i, 2.0f * sigmoid(load(in + n + i, n - i)), n - i);
    }
    for (i64 i = 0; i < n; i++) {
        const float* row = in + 2 * n + i * n;
        float c[padded(MAX_STREAMS)], top = -INFINITY, sum = 0;
        for (i64 j = 0; j < n; j++) top = row[j] > top ? row[j] : top;
        for (i64 j = 0; j < n; j += LANES) store(c + j, exponential(load(row + j, n - j) - top));
        for (i64 j = 0; j < n; j++) sum += c[j];
        for (i64 j = 0; j < n; j++) comb[(i * n + j) * apart] = c[j] / sum + eps;
    }
}

// Rounds of Sinkhorn that begin and end with columns, in place.  c [n, n]: weights of one token, or each a vector of
// those of several tokens, which are divided in the time of one.
template <class T>
PS_INLINE void sinkhorn(T* c, i64 n, i64 iterations, float eps) {
    for (i64 step = 0; step < 2 * iterations - 1 || step == 0; step++) {
        const i64 line = step % 2 ? n : 1, next = step % 2 ? 1 : n;  // from line to line, and within one
        for (i64 i = 0; i < n; i++) {
            T sum = {};
            for (i64 j = 0; j < n; j++) sum += c[i * line + j * next];
            for (i64 j = 0; j < n; j++) c[i * line + j * next] /= sum + eps;
        }
    }
}

// `tokens` of them, LANES at most.  mix [tokens, 2n + n²] holds the projected streams at first, and [pre | post | comb] in
// the end; factors [tokens]
PS_INLINE void mix_tokens(const ps_hyper& h, i64 n, i64 tokens, const float* factors, float* mix) {
    const i64 width = (2 + n) * n;
    float mixes[(2 + MAX_STREAMS) * MAX_STREAMS];
    vf combs[MAX_STREAMS * MAX_STREAMS] = {};  // a token in every lane
    for (i64 t = 0; t < tokens; t++) {
        float* own = mix + t * width;
        for (i64 i = 0; i < width; i++) mixes[i] = own[i];
        float* comb = tokens == 1 ? own + 2 * n : reinterpret_cast<float*>(combs) + t;
        begin_mix(mixes, factors[t], h.base, h.scale, n, h.eps, own, own + n, comb, tokens == 1 ? 1 : LANES);
    }
    if (tokens == 1) return sinkhorn(mix + 2 * n, n, h.iterations, h.eps);
    for (i64 i = 0; i < n * n; i++)  // lanes without a token divide by something too
        for (i64 t = tokens; t < LANES; t++) combs[i][t] = 1.0f;
    sinkhorn(combs, n, h.iterations, h.eps);
    for (i64 t = 0; t < tokens; t++)
        for (i64 i = 0; i < n * n; i++) mix[t * width + 2 * n + i] = combs[i][t];
}

// Streams [n, hidden] weighted by pre [n] and added up in order → out [hidden]
PS_INLINE void collapse_row(const float* streams, const float* pre, i64 n, i64 hidden, float* out) {
    for (i64 d = 0; d < hidden; d += LANES) {
        vf sum = {};
        for (i64 i = 0; i < n; i++) sum = fma(pre[i], load(streams + i * hidden + d, hidden - d), sum);
        store(out + d, sum, hidden - d);
    }
}

// stream_j = post_j · y + sum over i of comb_ij · stream_i, in that order, in place.
PS_INLINE void expand_row(const float* y, const float* post, const float* comb, i64 n, i64 hidden, float* streams) {
    for (i64 d = 0; d < hidden; d += LANES) {
        vf in[MAX_STREAMS], own = load(y + d, hidden - d);
        for (i64 i = 0; i < n; i++) in[i] = load(streams + i * hidden + d, hidden - d);
        for (i64 j = 0; j < n; j++) {
            vf sum = fma(post[j], own, vf{});
            for (i64 i = 0; i < n; i++) sum = fma(comb[i * n + j], in[i], sum);
            store(streams + j * hidden + d, sum, hidden - d);
        }
    }
}

void leave_rows(const float* y, float* streams, const float* mix, i64 first, i64 last, i64 n, i64 hidden) {
    const i64 width = (2 + n) * n;
    for (i64 r = first; r < last; r++) {
        const float *own = y + r * hidden, *post = mix + r * width + n, *comb = post + n;
        float* at = streams + r * n * hidden;
        if (n == 4)  // the number of streams of every published model, known to the compiler here
            expand_row(own, post, comb, 4, hidden, at);
        else
            expand_row(own, post, comb, n, hidden, at);
    }
}

// mix: see mix_tokens.  normed: the streams that were projected were normed, else that is made up for here.
void enter_rows(const ps_hyper& h, bool normed, const float* streams, i64 first, i64 last, float* x,
                float* mix) {
    const i64 n = h.streams, hidden = h.hidden, width = (2 + n) * n;
    for (i64 from = first; from < last; from += LANES) {
        const i64 tokens = std::min(LANES, last - from);
        float factors[LANES];
        for (i64 t = 0; t < tokens; t++)  // all streams of a token as one vector
            factors[t] = normed ? 1.0f : norm_scale(streams + (from + t) * n * hidden, n * hidden, h.rms_eps);
        if (n == 4)
            mix_tokens(h, 4, tokens, factors, mix + from * width);
        else
            mix_tokens(h, n, tokens, factors, mix + from * width);
        for (i64 r = from; r < from + tokens; r++) {
            const float *own = streams + r * n * hidden, *pre = mix + r * width;
            float* out = x + r * hidden;
            if (n == 4)
                collapse_row(own, pre, 4, hidden, out);
            else
                collapse_row(own, pre, n, hidden, out);
            norm_row(out, h.norm, hidden, h.rms_eps, out);
        }
    }
}

// sigmoid(mixes · scale + base) + eps for n streams
PS_INLINE void gate_row(const float* mixes, const float* base, const float* scale, i64 n, float eps, float* out) {
    for (i64 i = 0; i < n; i += LANES) {
        vf x = load(mixes + i, n - i) * load(scale + i, n - i) + load(base + i, n - i);
        store(out + i, sigmoid(x) + eps, n - i);
    }
}

void head_rows(const ps_head& h, const float* mixes, const float* streams, i64 first, i64 last, float* x) {
    const i64 n = h.streams, hidden = h.hidden;
    for (i64 r = first; r < last; r++) {
        float pre[MAX_STREAMS], *out = x + r * hidden;
        gate_row(mixes + r * n, h.base, h.scale, n, h.eps, pre);
        collapse_row(streams + r * n * hidden, pre, n, hidden, out);
        norm_row(out, h.norm, hidden, h.rms_eps, out);
    }
}

}  // namespace
