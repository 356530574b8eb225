// From what the projections give to low-rank queries, queries and key/value rows; and norms by themselves.
#pragma once

#include "../low_precision.h"
#include "../norm.h"
#include "../step_kernels.h"

namespace {

void norm_rows(const float* x, const float* weight, i64 first, i64 last, i64 dim, float eps, float* out) {
    for (i64 r = first; r < last; r++) norm_row(x + r * dim, weight, dim, eps, out + r * dim);
}

void low_rank_rows(const ps_queries& p, const float* x, i64 stride, i64 first, i64 last, float* out) {
    for (i64 r = first; r < last; r++) {
        norm_row(x + r * stride, p.norm, p.rank, p.eps, out + r * p.rank);
        if (p.low_precision) round_fp8(out + r * p.rank, p.rank, LINEAR_GROUP);
    }
}

// Heads [first, last) of all rows' heads, in place.
void finish_heads(float* q, const float* cos, const float* sin, i64 first, i64 last, i64 heads, i64 dim,
                  i64 half, float eps) {
    for (i64 i = first; i < last; i++) {
        float* own = q + i * dim;
        norm_row(own, nullptr, dim, eps, own);
        rotate_pairs(own + dim - 2 * half, cos + i / heads * half, sin + i / heads * half, half, 1.0f);
    }
}

void finish_index_heads(float* q, const float* cos, const float* sin, i64 first, i64 last, i64 heads,
                        i64 dim, i64 half, bool low_precision) {
    for (i64 i = first; i < last; i++) {
        float* own = q + i * dim;
        rotate_pairs(own + dim - 2 * half, cos + i / heads * half, sin + i / heads * half, half, 1.0f);
        if (!low_precision) continue;
        hadamard(own, dim);
        round_fp4(own, dim, INDEX_GROUP);
    }
}

void key_rows(const ps_keys& k, const float* projected, i64 stride, const float* cos, const float* sin,
              i64 first, i64 last, const ps_ring& ring, void* fresh, i64 position, float* row) {
    for (i64 r = first; r < last; r++) {
        norm_row(projected + r * stride + k.column, k.norm, k.dim, k.eps, row);
        rotate_pairs(row + k.dim - 2 * k.half, cos + r * k.half, sin + r * k.half, k.half, 1.0f);
        if (k.low_precision) round_fp8(row, k.dim - 2 * k.half, KEY_GROUP);
        void* to = fresh ? row_at(fresh, r, ring.width, ring.kind)
                         : row_at(ring.data, (position + r) % ring.capacity, ring.width, ring.kind);
        narrow(row, k.dim, ring.kind, to);
    }
}

}  // namespace
