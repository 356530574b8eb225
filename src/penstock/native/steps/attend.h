// Attention with shared key/value rows and a sink.
//
// A token's visible rows are taken in order, window first, in blocks that are made float32 once and then serve all
// heads.  The softmax is kept up to date from block to block: when a block brings a new highest score, what
// was added up so far is scaled down to it.  Blocks are counted from the token's own first visible row, so the order
// of every sum is a matter of that token alone.
//
// A row of 512 channels costs 64 heads · 2 · 512 multiply-adds, 4096 cycles at two fused vectors per cycle, and some
// hundred cycles for making it float32, which is why tokens do not share that.
#pragma once

#include "../dot.h"
#include "../norm.h"
#include "../step_kernels.h"

namespace {

constexpr i64 NEAR = 8;  // rows of a block that are used together: 16 KiB, half of a small L1 cache
static_assert(ATTENTION_BLOCK % LANES == 0 && ATTENTION_BLOCK % NEAR == 0);

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

// value[h] += weights[h, i] · block[i] for H heads and D vectors of channels, rows in order.
template <int H, int D>
PS_INLINE void add_values(const float* weights, const float* block, i64 stride, i64 count, float* value, i64 width) {
    vf sum[H][D];
    PS_UNROLL
    for (int h = 0; h < H; h++)
        PS_UNROLL
        for (int d = 0; d < D; d++) sum[h][d] = load(value + h * width + d * LANES);
    for (i64 i = 0; i < count; i++) {
        vf v[D];
        PS_UNROLL
        for (int d = 0; d < D; d++) v[d] = load(block + i * stride + d * LANES);
        PS_UNROLL
        for (int h = 0; h < H; h++) {
            vf w = splat(weights[h * ATTENTION_BLOCK + i]);
            PS_UNROLL
            for (int d = 0; d < D; d++) sum[h][d] = fma(w, v[d], sum[h][d]);
        }
    }
    PS_UNROLL
    for (int h = 0; h < H; h++)
        PS_UNROLL
        for (int d = 0; d < D; d++) store(value + h * width + d * LANES, sum[h][d]);
}

#if defined(__AVX512F__)
// The same for two vectors of channels in one.
template <int H>
PS_INLINE void add_wide_values(const float* weights, const float* block, i64 stride, i64 count, float* value,
                               i64 width) {
    __m512 sum[H];
    PS_UNROLL
    for (int h = 0; h < H; h++) sum[h] = _mm512_loadu_ps(value + h * width);
    for (i64 i = 0; i < count; i++) {
        const __m512 v = _mm512_loadu_ps(block + i * stride);
        PS_UNROLL
        for (int h = 0; h < H; h++)
            sum[h] = _mm512_fmadd_ps(_mm512_set1_ps(weights[h * ATTENTION_BLOCK + i]), v, sum[h]);
    }
    PS_UNROLL
    for (int h = 0; h < H; h++) _mm512_storeu_ps(value + h * width, sum[h]);
}
#endif

template <int H>
PS_INLINE void add_values(const float* weights, const float* block, i64 stride, i64 count, float* value, i64 width) {
    i64 d = 0;
#if defined(__AVX512F__)
    for (; d + 2 * LANES <= width; d += 2 * LANES)
        add_wide_values<H>(weights, block + d, stride, count, value + d, width);
#endif
    for (; d + 2 * LANES <= width; d += 2 * LANES)
        add_values<H, 2>(weights, block + d, stride, count, value + d, width);
    if (d < width) add_values<H, 1>(weights, block + d, stride, count, value + d, width);
}

void attend_token(const ps_attention& a, const ps_attention_call& c, i64 token, i64 first_head, i64 heads,
                  float* scratch) {
    const i64 dim = a.dim, width = padded(dim), stride = attention_stride(dim);
    const float* q = c.q + (token * a.heads + first_head) * dim;
    float* block = scratch;                            // [ATTENTION_BLOCK, stride]
    float* scores = block + ATTENTION_BLOCK * stride;  // [heads, ATTENTION_BLOCK]
    float* values = scores + heads * ATTENTION_BLOCK;
    Sums sums{values, values + heads * width, values + heads * (width + 1)};
    for (i64 i = 0; i < heads * width; i++) sums.value[i] = 0;
    for (i64 h = 0; h < heads; h++) {
        sums.weight[h] = 1;
        sums.top[h] = a.sinks[first_head + h];
    }

    const Rows ring{c.ring->data, c.ring->width, c.ring->kind}, fresh{c.fresh, c.ring->width, c.ring->kind};
    const Rows rows{c.rows, c.rows_stride, c.rows_kind};
    const i64 last = c.position + token;
    const i64 first = last + 1 > a.window_size ? last + 1 - a.window_size : 0;
    i64 compressed = 0;
    if (c.rows) {
        i64 seen = c.visible ? c.visible[token] : (last + 1) / a.ratio;
        seen = seen < c.row_count ? seen : c.row_count;
        compressed = c.picks ? c.picks_width : seen > 0 ? seen : 0;
    }
    const i64 slots = last + 1 - first + compressed;
    const float scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(dim)));
    for (i64 slot = 0; slot < slots;) {
        i64 count = 0;
        for (; slot < slots && count < ATTENTION_BLOCK; slot++) {
            const i64 p = first + slot, beyond = p - last - 1;
            float* to = block + count * stride;
            if (beyond >= 0) {
                const i64 row = c.picks ? c.picks[token * c.picks_width + beyond] : beyond;
                if (row < 0) continue;
                widen(rows, row, dim, to);
            } else if (c.fresh && p >= c.begun) {
                widen(fresh, p - c.begun, dim, to);
            } else {
                widen(ring, p % c.ring->capacity, dim, to);
            }
            count++;
        }
        if (count == 0) break;
        for (i64 i = 0; i < count; i += NEAR)
            dot_all(q, dim, heads, block + i * stride, stride, count - i < NEAR ? count - i : NEAR, dim, scores + i,
                    ATTENTION_BLOCK);
        for (i64 h = 0; h < heads; h++)
            weigh(scores + h * ATTENTION_BLOCK, count, scale, sums.value + h * width, width, sums.weight[h], sums.top[h]);
        for (i64 i = 0; i < count; i += NEAR) {
            const float *weights = scores + i, *near = block + i * stride;
            const i64 n = count - i < NEAR ? count - i : NEAR;
            i64 h = 0;
            for (; h + 4 <= heads; h += 4)
                add_values<4>(weights + h * ATTENTION_BLOCK, near, stride, n, sums.value + h * width, width);
            for (; h + 2 <= heads; h += 2)
                add_values<2>(weights + h * ATTENTION_BLOCK, near, stride, n, sums.value + h * width, width);
            if (h < heads) add_values<1>(weights + h * ATTENTION_BLOCK, near, stride, n, sums.value + h * width, width);
        }
    }

    float* out = c.out + (token * a.heads + first_head) * dim;
    for (i64 h = 0; h < heads; h++, out += dim) {
        for (i64 d = 0; d < dim; d += LANES)
            store(out + d, load(sums.value + h * width + d) / sums.weight[h], dim - d);
        if (c.cos)
            rotate_pairs(out + dim - 2 * a.half, c.cos + token * a.half, c.sin + token * a.half, a.half, -1.0f);
    }
}

}  // namespace
