// The forms of inputs.cuh, made by threads that have one column each instead of warps that have a cell.
#pragma once

#include "inputs.cuh"

// 1 / sqrt(v), with a step of Newton's behind the approximation
PS_DEVICE float inverse_root(float v) {
    const float r = rsqrtf(v);
    return r * fmaf(-0.5f * v * r, r, 1.5f);
}

// Of numbers that are not negative, whose bits have their order.
PS_DEVICE float warp_largest(float v) { return bits_float(__reduce_max_sync(ALL, float_bits(v))); }

// As `row_scale`, from the mean of squares and the largest number of a whole row.
PS_DEVICE RowScale whole_row(float mean_square, float largest, bool norm, float eps) {
    const float factor = norm ? inverse_root(mean_square + eps) : 1.0f;
    const int exponent = static_cast<int>(float_bits(largest * factor) >> 23 & 255);
    const int shift = min(max(127 + 9 - exponent, -120), 120);
    return {factor, bits_float(static_cast<u32>(127 + shift) << 23), bits_float(static_cast<u32>(127 - shift) << 23)};
}

// The scale of a cell's digits and its inverse: see `to_digits`.  The quotient is the nearest number too: one step behind a product
// with the inverse is enough.
PS_DEVICE float2 digit_scale(float largest) {
    const float about = largest * (1 / LARGEST), scale = fmaxf(fmaf(fmaf(-about, LARGEST, largest), 1 / LARGEST, about), SMALLEST_NORMAL);
    return {scale, __frcp_rn(scale)};
}
// v / scale = 255 · x + y
PS_DEVICE int2 digits_of(float v, float inverse) {
    const int q = __float2int_rn(v * inverse), high = __float2int_rn(static_cast<float>(q) * (1.0f / 255));
    return {high, q - 255 * high};
}

// v: a number of a row, normed; largest: of the numbers of its cell; up: the power of two of the row's halves.
PS_DEVICE void store_column(const InputPlan& p, char* at, int row, int column, float v, float largest, float up) {
    if (p.forms & DIGITS) {
        const float2 scale = digit_scale(largest);
        const int2 d = digits_of(v, scale.y);
        char* planes = at + 2 * row * p.digit_stride() + column;
        planes[0] = static_cast<char>(d.x), planes[p.digit_stride()] = static_cast<char>(d.y);
        if (p.forms & NEGATED) {
            planes += p.negated_at();
            planes[0] = static_cast<char>(-d.x), planes[p.digit_stride()] = static_cast<char>(-d.y);
        }
        if (column % CELL == 0) reinterpret_cast<float*>(at + p.scales_at())[column / CELL * 8 + row] = scale.x;
    }
    if (p.forms & HALVES) {
        const u16 high = float_to_half(v * up);
        char* plane = at + p.halves_at() + 2 * row * p.half_stride() + column * 2;
        *reinterpret_cast<u16*>(plane) = high;
        *reinterpret_cast<u16*>(plane + p.half_stride()) = float_to_half(v * up - half_to_float(high));
    }
    if (p.forms & FLOATS) reinterpret_cast<float*>(at + p.floats_at() + row * p.float_stride())[column] = v;
}
