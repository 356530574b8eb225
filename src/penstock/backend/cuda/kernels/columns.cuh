// The forms of inputs.cuh, made by threads that have one column each instead of warps that have a cell.
#pragma once

#include "inputs.cuh"

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
