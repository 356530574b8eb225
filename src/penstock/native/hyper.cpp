// Hyper-connections: how the parallel residual streams enter and leave a sublayer.
#include "simd.h"

constexpr i64 MAX_STREAMS = 16;

// Mixing weights from the projected streams, for n <= MAX_STREAMS streams.
// mixes [rows, 2n + n²]: n for pre, n for post, then source × destination; base [2n + n²]; scale [3], one for each.
// pre = sigmoid + eps; post = 2 · sigmoid; comb = softmax over destinations + eps, then `iterations` rounds of
// Sinkhorn that begin and end with columns.  pre, post [rows, n]; comb [rows, n, n].
PS_KERNEL void ps_hyper_mix(const float* mixes, const float* base, const float* scale, i64 rows, i64 n, i64 iterations,
                            float eps, float* pre, float* post, float* comb) {
    for (i64 r = 0; r < rows; r++, mixes += (2 + n) * n, pre += n, post += n, comb += n * n) {
        float in[padded((2 + MAX_STREAMS) * MAX_STREAMS)];
        for (i64 i = 0; i < (2 + n) * n; i++) in[i] = mixes[i] * scale[i < n ? 0 : i < 2 * n ? 1 : 2] + base[i];
        for (i64 i = 0; i < n; i += LANES) {
            store(pre + i, sigmoid(load(in + i, n - i)) + eps, n - i);
            store(post + i, 2.0f * sigmoid(load(in + n + i, n - i)), n - i);
        }
        float c[MAX_STREAMS][padded(MAX_STREAMS)];
        for (i64 i = 0; i < n; i++) {
            const float* row = in + 2 * n + i * n;
            float top = -INFINITY, sum = 0;
            for (i64 j = 0; j < n; j++) top = row[j] > top ? row[j] : top;
            for (i64 j = 0; j < n; j += LANES) store(c[i] + j, exponential(load(row + j, n - j) - top));
            for (i64 j = 0; j < n; j++) sum += c[i][j];
            for (i64 j = 0; j < n; j++) c[i][j] = c[i][j] / sum + eps;
        }
        for (i64 step = 0; step < 2 * iterations - 1 || step == 0; step++) {
            for (i64 i = 0; i < n; i++) {
                float sum = 0;
                if (step % 2 == 0) {
                    for (i64 j = 0; j < n; j++) sum += c[j][i];
                    for (i64 j = 0; j < n; j++) c[j][i] /= sum + eps;
                } else {
                    for (i64 j = 0; j < n; j++) sum += c[i][j];
                    for (i64 j = 0; j < n; j++) c[i][j] /= sum + eps;
                }
            }
        }
        for (i64 i = 0; i < n; i++)
            for (i64 j = 0; j < n; j++) comb[i * n + j] = c[i][j];
    }
}

// sigmoid(mixes · scale + base) + eps.  mixes, out [rows, n]; base, scale [n]
PS_KERNEL void ps_hyper_gate(const float* mixes, const float* base, const float* scale, i64 rows, i64 n, float eps,
                             float* out) {
    for (i64 r = 0; r < rows; r++, mixes += n, out += n)
        for (i64 i = 0; i < n; i += LANES) {
            vf x = load(mixes + i, n - i) * load(scale + i, n - i) + load(base + i, n - i);
            store(out + i, sigmoid(x) + eps, n - i);
        }
}

// Streams [rows, n, hidden] weighted by pre [rows, n] and added up in order → out [rows, hidden]
PS_KERNEL void ps_hyper_collapse(const float* streams, const float* pre, i64 rows, i64 n, i64 hidden, float* out) {
    for (i64 r = 0; r < rows; r++, streams += n * hidden, pre += n, out += hidden)
        for (i64 d = 0; d < hidden; d += LANES) {
            vf sum = {};
            for (i64 i = 0; i < n; i++) sum += pre[i] * load(streams + i * hidden + d, hidden - d);
            store(out + d, sum, hidden - d);
        }
}

// out_j = post_j · y + sum over i of comb_ij · stream_i, in that order.
// y [rows, hidden]; streams, out [rows, n, hidden]; post [rows, n]; comb [rows, n, n]
PS_KERNEL void ps_hyper_expand(const float* y, const float* streams, const float* post, const float* comb, i64 rows,
                               i64 n, i64 hidden, float* out) {
    for (i64 r = 0; r < rows; r++, y += hidden, streams += n * hidden, out += n * hidden, post += n, comb += n * n)
        for (i64 d = 0; d < hidden; d += LANES)
            for (i64 j = 0; j < n; j++) {
                vf sum = {};
                sum += post[j] * load(y + d, hidden - d);
                for (i64 i = 0; i < n; i++) sum += comb[i * n + j] * load(streams + i * hidden + d, hidden - d);
                store(out + j * hidden + d, sum, hidden - d);
            }
}
