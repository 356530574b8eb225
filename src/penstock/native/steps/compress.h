// One window of a compressor becomes a row.
#pragma once

#include "../low_precision.h"
#include "../norm.h"
#include "../step_kernels.h"

namespace {

void compress_window(const CompressTask& t, i64 window, float* row) {
    const ps_compressor& c = t.c;
    const i64 begin = window * c.ratio;
    Candidate* list = reinterpret_cast<Candidate*>(row + compressed_row_floats(c.dim, c.half));
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

}  // namespace
