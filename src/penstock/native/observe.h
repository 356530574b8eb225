// What weights are multiplied with, for whoever wants to know which of their columns count (ps_weight::squares).
#pragma once

#include "products.h"

// Rows of inputs, those of `index` if that is given, of part `part` of the weight.  By one thread, row after row, so that
// the sums depend on nothing else.
inline void observe(const ps_weight& weight, i64 part, const float* x, i64 x_stride, const i64* index, i64 rows) {
    if (!weight.squares) return;
    float* sums = weight.squares + part * (weight.columns + 1);
    for (i64 i = 0; i < rows; i++) {
        const float* row = x + (index ? index[i] : i) * x_stride;
        for (i64 c = 0; c < weight.columns; c++) sums[c] += row[c] * row[c];
    }
    sums[weight.columns] += static_cast<float>(rows);
}
