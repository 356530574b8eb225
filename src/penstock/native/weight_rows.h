// Some rows of a weight, ready to be multiplied: the one place that knows which weights have to be decoded first.
#pragma once

#include <algorithm>

#include "kernels.h"
#include "step_kernels.h"
#include "workspace.h"

constexpr i64 SLAB = 1 << 17;    // weights decoded at a time: 512 KiB of float32, half of a small L2 cache
constexpr i64 DECODING_TIME = 8;  // decoding a weight takes about as long as this many multiplications, or longer

// Rows decoded at a time, at most.
constexpr i64 slab_rows(i64 columns) { return std::max<i64>(4, SLAB / std::max<i64>(1, columns)); }

// Multiplications that a row takes, decoding included.
inline i64 row_work(const ps_weight& weight, i64 inputs) {
    return weight.columns * (inputs + (weight.type == W_DECODED ? DECODING_TIME : 0));
}

// Rows [first, last).  Those of W_DECODED, slab_rows at most, are decoded when this is made, into this thread's memory
// for `USE`, and can then be multiplied with any number of inputs.
template <WorkspaceUse USE = DECODED>
class WeightRows {
  public:
    WeightRows(const ps_weight& weight, i64 first, i64 last) : weight_(weight), first_(first), last_(last) {
        if (weight.type != W_DECODED) return;
        decoded_ = workspace<USE>((last - first) * weight.columns);
        weight.decode(weight.number, first, last, decoded_);
    }

    // out[i · out_stride + j − first] = (input i) · (weight row j).  scratch: see Kernels::multiply.
    void multiply(const Inputs& inputs, float* out, i64 out_stride, void* scratch) const {
        if (decoded_)
            kernels().steps.multiply_floats(inputs, decoded_, last_ - first_, out, out_stride);
        else
            kernels().multiply(weight_, first_, last_, inputs, out, out_stride, scratch);
    }

  private:
    const ps_weight& weight_;
    i64 first_, last_;
    float* decoded_ = nullptr;
};
