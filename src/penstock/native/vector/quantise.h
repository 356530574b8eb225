// Inputs to 16 bits, in plain loops: the compiler makes vectors of them.
#pragma once

#include "common.h"

namespace {

void quantise_block(const float* x, i16* q, float& scale_out, float* sums) {
    std::uint32_t bits[BLOCK], largest_bits = 0;
    std::memcpy(bits, x, sizeof bits);
    for (int i = 0; i < BLOCK; i++) {
        const std::uint32_t size = bits[i] & 0x7fffffff;  // ordered like the floats; NaN and infinity are the largest
        largest_bits = size > largest_bits ? size : largest_bits;
    }
    if (largest_bits >= 0x7f800000) {
        scale_out = __builtin_nanf("");
        for (int i = 0; i < BLOCK; i++) q[i] = 0;
        for (int i = 0; i < SUMS; i++) sums[i] = 0;
        return;
    }
    float largest;
    std::memcpy(&largest, &largest_bits, 4);
    float scale = largest / static_cast<float>(LARGEST);
    scale = scale > __FLT_MIN__ ? scale : __FLT_MIN__;
    const float inverse = 1.0f / scale;
    scale_out = scale;
    std::int32_t rounded[BLOCK];
    const float shift = 12582912.0f;  // 1.5 · 2²³: leaves the nearest integer, ties to even, in the lowest bits
    for (int i = 0; i < BLOCK; i++) {
        const float shifted = x[i] * inverse + shift;
        std::memcpy(&rounded[i], &shifted, 4);
    }
    for (int i = 0; i < BLOCK; i++) q[i] = static_cast<i16>(rounded[i] & 0xffff);
    for (int k = 0; k < 16; k++) {
        std::int32_t sum = 0;
        for (int i = 0; i < 16; i++) sum += q[k * 16 + i];
        sums[8 + k] = static_cast<float>(sum);
    }
    for (int k = 0; k < 8; k++) sums[k] = sums[8 + 2 * k] + sums[8 + 2 * k + 1];
}

// value = 255 · high + low: 255 is odd, so no value lies half-way between two multiples of it.
void split_digits(const i16* q, std::int8_t* out) {
    for (int i = 0; i < BLOCK; i++) {
        const float shifted = static_cast<float>(q[i]) * (1.0f / 255) + 12582912.0f;
        std::int32_t high;
        std::memcpy(&high, &shifted, 4);
        high = static_cast<i16>(high & 0xffff);
        out[i] = static_cast<std::int8_t>(high);
        out[BLOCK + i] = static_cast<std::int8_t>(q[i] - 255 * high);
    }
}

void quantise(const float* x, i64 columns, i16* const values[ORDERS], i64 values_stride, float* scales, float* sums) {
    for (i64 b = 0; b * BLOCK < columns; b++) {
        float padded[BLOCK];
        const float* from = x + b * BLOCK;
        if (columns - b * BLOCK < BLOCK) {
            for (i64 i = 0; i < BLOCK; i++) padded[i] = b * BLOCK + i < columns ? from[i] : 0;
            from = padded;
        }
        i16 q[BLOCK];
        quantise_block(from, q, scales[b], sums + b * SUMS);
        if (values[NATURAL]) std::memcpy(values[NATURAL] + b * values_stride, q, sizeof q);
        if (values[PLANES]) split_digits(q, reinterpret_cast<std::int8_t*>(values[PLANES] + b * values_stride));
        if (i16* split = values[SPLIT])
            for (i64 g = 0; g < BLOCK; g += GROUP)
                for (i64 i = 0; i < 16; i++) {
                    split[b * values_stride + g + i] = q[g + 2 * i];
                    split[b * values_stride + g + 16 + i] = q[g + 2 * i + 1];
                }
    }
}

}  // namespace
