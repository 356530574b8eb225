// Inputs made ready for products: rounded to 16 bits once, in the orders that the weights ask for.
#pragma once

#include "kernels.h"
#include "scratch.h"

// Time in nanoseconds that work takes on one thread, roughly: what is read, and what is computed.
constexpr i64 time_of(i64 bytes, i64 multiplications) { return bytes / 12 + multiplications / 40; }

// How many of `threads` are worth waking for so much work.
constexpr i64 threads_for(i64 nanoseconds, i64 threads) {
    const i64 most = 1 + nanoseconds / 4000;
    return threads < most ? threads : most;
}

constexpr i64 blocks_of(i64 columns) { return (columns + BLOCK - 1) / BLOCK; }

// The orders that some weights ask for, between them.
struct Orders {
    bool wanted[ORDERS] = {};
    bool any = false;

    // A weight that will be used with so many rows of inputs.
    void add(const ps_weight& weight, i64 rows) {
        const Wants want = wants(weight.type);
        if (!want.quantised || rows == 0) return;
        wanted[want.planes && kernels().planes && rows <= FEW ? PLANES : want.order] = any = true;
    }
};

// Arrays for `rows` quantised rows.
class Quantised {
  public:
    Quantised(Layout& layout, i64 rows, i64 columns, const Orders& orders)
        : columns_(columns), values_stride_(rows * BLOCK) {
        if (!orders.any) return;
        const i64 blocks = rows * blocks_of(columns);
        for (int order = 0; order < ORDERS; order++)
            if (orders.wanted[order]) values_[order] = layout.add<i16>(blocks * BLOCK);
        scales_ = layout.add<float>(blocks);
        sums_ = layout.add<float>(blocks * SUMS);
    }

    bool needed() const { return scales_ >= 0; }

    // Quantises row `row`.
    void fill(void* memory, i64 row, const float* x) const {
        const i64 block = row * blocks_of(columns_);
        i16* values[ORDERS];
        for (int order = 0; order < ORDERS; order++)
            values[order] = values_[order] < 0 ? nullptr : at<i16>(memory, values_[order]) + row * BLOCK;
        kernels().quantise(x, columns_, values, values_stride_, at<float>(memory, scales_) + block,
                           at<float>(memory, sums_) + block * SUMS);
    }

    // Rows from `first` on as inputs of a product; x is where the same rows lie as floats.
    Inputs inputs(void* memory, i64 first, const float* x, i64 x_stride, const i64* index, i64 rows) const {
        const i64 blocks = blocks_of(columns_), block = first * blocks;
        Inputs in = {x, x_stride, columns_, blocks, values_stride_, {}, nullptr, nullptr, index, rows};
        if (!needed()) return in;
        for (int order = 0; order < ORDERS; order++)
            if (values_[order] >= 0) in.values[order] = at<i16>(memory, values_[order]) + first * BLOCK;
        in.scales = at<float>(memory, scales_) + block;
        in.sums = at<float>(memory, sums_) + block * SUMS;
        return in;
    }

  private:
    i64 columns_, values_stride_;
    i64 values_[ORDERS] = {-1, -1, -1}, scales_ = -1, sums_ = -1;
};
