// Inputs made ready for products, once for all weights that read them: rounded through FP8 for those that ask for it,
// and to 16 bits, in the orders that their formats ask for.
#pragma once

#include "kernels.h"
#include "low_precision.h"
#include "scratch.h"
#include "step_bytes.h"

// Time in nanoseconds that work takes on one thread, roughly: what is read, and what is computed.
constexpr i64 time_of(i64 bytes, i64 multiplications) { return bytes / 12 + multiplications / 40; }

// How many of `threads` are worth waking for so much work.
constexpr i64 threads_for(i64 nanoseconds, i64 threads) {
    const i64 most = 1 + nanoseconds / 4000;
    return threads < most ? threads : most;
}

constexpr i64 SHORTEST_PIECE = 2000;  // nanoseconds of work: threads that take pieces at the same time wait for each other

constexpr i64 blocks_of(i64 columns) { return (columns + BLOCK - 1) / BLOCK; }

// Inputs as they are, and rounded through FP8.
enum Precision { EXACT = 0, ROUNDED = 1 };
constexpr int PRECISIONS = 2;

PS_INLINE constexpr Precision precision_of(const ps_weight& weight) { return weight.round_input ? ROUNDED : EXACT; }

// What some weights ask of their inputs, between them.
struct Needs {
    bool orders[PRECISIONS][ORDERS] = {};
    i64 round = 0;  // channels in a group of those that are rounded; 0: none are

    // A weight that will be used with so many rows of inputs, of that precision.
    void add(const ps_weight& weight, i64 rows, Precision precision) {
        if (rows == 0) return;
        if (precision == ROUNDED) round = weight.round_input;
        const Wants want = wants(weight.type);
        if (want.quantised)
            orders[precision][want.planes && kernels().planes && rows <= FEW ? PLANES : want.order] = true;
    }
    void add(const ps_weight& weight, i64 rows) { add(weight, rows, precision_of(weight)); }

    bool quantised(int precision) const {
        return orders[precision][NATURAL] || orders[precision][SPLIT] || orders[precision][PLANES];
    }
};

// What a model's weights may ask for at most.
inline Needs most_needs(const ps_step_sizes& sizes) {
    Needs needs;
    for (int precision = 0; precision < (sizes.low_precision ? PRECISIONS : 1); precision++)
        for (int order = 0; order < ORDERS; order++) needs.orders[precision][order] = sizes.inputs >> order & 1;
    if (!kernels().planes) needs.orders[EXACT][PLANES] = needs.orders[ROUNDED][PLANES] = false;
    if (sizes.low_precision) needs.round = LINEAR_GROUP;
    return needs;
}

// Arrays for `rows` rows of inputs.
class ReadyInputs {
  public:
    ReadyInputs(Layout& layout, i64 rows, i64 columns, const Needs& needs)
        : columns_(columns), values_stride_(rows * BLOCK), round_(needs.round) {
        if (round_) rounded_ = layout.add<float>(rows * columns);
        const i64 blocks = rows * blocks_of(columns);
        for (int precision = 0; precision < PRECISIONS; precision++) {
            if (!needs.quantised(precision)) continue;
            Quantised& q = quantised_[precision];
            for (int order = 0; order < ORDERS; order++)
                if (needs.orders[precision][order]) q.values[order] = layout.add<i16>(blocks * BLOCK);
            q.scales = layout.add<float>(blocks);
            q.sums = layout.add<float>(blocks * SUMS);
        }
    }

    // Whether anything is to be filled.
    bool needed() const { return round_ || quantised_[EXACT].scales >= 0; }

    // Makes row `row` ready.
    void fill(void* memory, i64 row, const float* x) const {
        if (quantised_[EXACT].scales >= 0) quantise(memory, quantised_[EXACT], row, x);
        if (!round_) return;
        float* rounded = at<float>(memory, rounded_) + row * columns_;
        std::memcpy(rounded, x, static_cast<std::size_t>(columns_) * sizeof(float));
        round_fp8(rounded, columns_, round_);
        if (quantised_[ROUNDED].scales >= 0) quantise(memory, quantised_[ROUNDED], row, rounded);
    }

    // Rows from `first` on as inputs of a product; x is where the same rows lie as exact floats.
    Inputs inputs(void* memory, Precision precision, i64 first, const float* x, i64 x_stride, const i64* index,
                  i64 rows) const {
        if (precision == ROUNDED) {
            x = at<float>(memory, rounded_) + first * columns_;
            x_stride = columns_;
        }
        const Quantised& q = quantised_[precision];
        const i64 blocks = blocks_of(columns_), block = first * blocks;
        Inputs in = {x, x_stride, columns_, blocks, values_stride_, {}, nullptr, nullptr, index, rows};
        if (q.scales < 0) return in;
        for (int order = 0; order < ORDERS; order++)
            if (q.values[order] >= 0) in.values[order] = at<i16>(memory, q.values[order]) + first * BLOCK;
        in.scales = at<float>(memory, q.scales) + block;
        in.sums = at<float>(memory, q.sums) + block * SUMS;
        return in;
    }

  private:
    struct Quantised {  // where its arrays are, or -1
        i64 values[ORDERS] = {-1, -1, -1}, scales = -1, sums = -1;
    };

    void quantise(void* memory, const Quantised& q, i64 row, const float* x) const {
        const i64 block = row * blocks_of(columns_);
        i16* values[ORDERS];
        for (int order = 0; order < ORDERS; order++)
            values[order] = q.values[order] < 0 ? nullptr : at<i16>(memory, q.values[order]) + row * BLOCK;
        kernels().quantise(x, columns_, values, values_stride_, at<float>(memory, q.scales) + block,
                           at<float>(memory, q.sums) + block * SUMS);
    }

    i64 columns_, values_stride_, round_, rounded_ = -1;
    Quantised quantised_[PRECISIONS];
};
