// Inputs of products.  A block makes them ready for all its warps, in the forms that its weights ask for:
//
//   DIGITS   two signed base-255 digits with one scale per 256 columns, the CPU kernels' integers:
//            x ≈ scale · (255 · high + low), |high|, |low| ≤ 127
//   NEGATED  the same digits with the other sign
//   HALVES   x · 2^-e = high + low, two f16 numbers, with one power of two for the row: 22 bits
//   FLOATS   as they are
//
// In shared memory every (row, digit) is a plane of its own, 32 bytes longer than its numbers, so that the eight planes of a
// tensor-core operand lie in different banks.
#pragma once

#include "common.cuh"

constexpr int CELL = 256;
constexpr int DIGITS = 1, NEGATED = 2, HALVES = 4, FLOATS = 8;
constexpr float LARGEST = 127 * 255 + 127;
constexpr float SMALLEST_NORMAL = 1.17549435e-38f;

struct Digits {
    uint2 high, low;  // eight columns
    float scale;
};

// 256 columns of a row, eight to a lane.
PS_DEVICE Digits to_digits(const float (&v)[8]) {
    float largest = 0;
#pragma unroll
    for (int i = 0; i < 8; i++) largest = fmaxf(largest, fabsf(v[i]));
    largest = warp_max(largest);
    // Not below the smallest normal number, so that its inverse is finite.
    Digits d;
    d.scale = fmaxf(__fdiv_rn(largest, LARGEST), SMALLEST_NORMAL);
    const float inverse = __fdiv_rn(1.0f, d.scale);
    u32 high[2] = {0, 0}, low[2] = {0, 0};
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const int q = __float2int_rn(v[i] * inverse);
        const int h = __float2int_rn(static_cast<float>(q) * (1.0f / 255)), l = q - 255 * h;
        high[i / 4] |= (h & 255) << i % 4 * 8;
        low[i / 4] |= (l & 255) << i % 4 * 8;
    }
    d.high = {high[0], high[1]};
    d.low = {low[0], low[1]};
    return d;
}

// −1 times four signed bytes, none of them −128.
PS_DEVICE u32 negate_bytes(u32 v) { return __vsub4(0, v); }

// Where the forms of `rows` rows of `columns` numbers lie; columns is a multiple of 256.
struct InputPlan {
    int columns, rows, forms;

    PS_DEVICE int digit_stride() const { return columns + 32; }
    PS_DEVICE int half_stride() const { return 2 * columns + 32; }
    PS_DEVICE int float_stride() const { return 4 * columns + 32; }
    PS_DEVICE int negated_at() const { return forms & DIGITS ? 2 * rows * digit_stride() : 0; }
    PS_DEVICE int halves_at() const { return negated_at() + (forms & NEGATED ? 2 * rows * digit_stride() : 0); }
    PS_DEVICE int floats_at() const { return halves_at() + (forms & HALVES ? 2 * rows * half_stride() : 0); }
    PS_DEVICE int scales_at() const { return floats_at() + (forms & FLOATS ? rows * float_stride() : 0); }
    // [cells][8] scales of the digits, then [8] of the halves
    PS_DEVICE int bytes() const { return scales_at() + (columns / CELL + 1) * 8 * 4; }
};

PS_DEVICE void store_digits(char* at, const InputPlan& p, int row, int cell, int lane, const Digits& d) {
    char* planes = at + 2 * row * p.digit_stride() + cell * CELL + lane * 8;
    *reinterpret_cast<uint2*>(planes) = d.high;
    *reinterpret_cast<uint2*>(planes + p.digit_stride()) = d.low;
    if (p.forms & NEGATED) {
        planes += p.negated_at();
        *reinterpret_cast<uint2*>(planes) = {negate_bytes(d.high.x), negate_bytes(d.high.y)};
        *reinterpret_cast<uint2*>(planes + p.digit_stride()) = {negate_bytes(d.low.x), negate_bytes(d.low.y)};
    }
    float* scales = reinterpret_cast<float*>(at + p.scales_at());
    if (lane == 0) scales[cell * 8 + row] = d.scale;
}

// Rows of floats, or of digits that the kernel before has made; `norm`: divided by their root mean square and multiplied with it.
struct Inputs {
    const float* x;       // [rows, stride] or null
    const u8* digits;     // [rows, cells, 2, 256] or null
    const float* scales;  // [rows, cells] with digits
    const float* norm;    // [width] or null
    int stride, width;    // numbers in a row; columns behind them are zeros
    float eps;
};

PS_DEVICE void load_eight(const float* x, int at, int width, float (&v)[8]) {
    if (at + 8 <= width) {
        const float4 a = *reinterpret_cast<const float4*>(x + at), b = *reinterpret_cast<const float4*>(x + at + 4);
        v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w, v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
    } else {
#pragma unroll
        for (int i = 0; i < 8; i++) v[i] = at + i < width ? x[at + i] : 0.0f;
    }
}

// All threads of the block; `scratch` has a float for each warp.  Sums go over 256 columns in a warp, then over a warp's cells,
// then over the warps: an order that depends on nothing but the number of warps.
template <int WARPS>
PS_DEVICE void prepare(const Inputs& in, const InputPlan& p, char* at, float* scratch) {
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, cells = p.columns / CELL;
    if (in.digits) {
        for (int i = warp; i < p.rows * cells; i += WARPS) {
            const int row = i / cells, cell = i % cells;
            const u8* from = in.digits + static_cast<size_t>(i) * 2 * CELL + lane * 8;
            Digits d = {load8(from), load8(from + CELL), in.scales[i]};
            store_digits(at, p, row, cell, lane, d);
        }
        __syncthreads();
        return;
    }
    for (int row = 0; row < p.rows; row++) {
        const float* x = in.x + static_cast<size_t>(row) * in.stride;
        float factor = 1, largest = 0;
        if (in.norm || p.forms & HALVES) {
            float squares = 0;
            for (int cell = warp; cell < cells; cell += WARPS) {
                float v[8];
                load_eight(x, cell * CELL + lane * 8, in.width, v);
                float sum = 0;
#pragma unroll
                for (int i = 0; i < 8; i++) sum += v[i] * v[i];
                squares += sum;
                if (p.forms & HALVES) {
#pragma unroll
                    for (int i = 0; i < 8; i++) {
                        const int c = cell * CELL + lane * 8 + i;
                        const float w = in.norm && c < in.width ? in.norm[c] : 1.0f;
                        largest = fmaxf(largest, fabsf(v[i] * w));
                    }
                }
            }
            squares = warp_sum(squares), largest = warp_max(largest);
            __syncthreads();
            if (lane == 0) scratch[warp] = squares, scratch[WARPS + warp] = largest;
            __syncthreads();
            squares = 0;
            for (int w = 0; w < WARPS; w++) squares += scratch[w], largest = fmaxf(largest, scratch[WARPS + w]);
            if (in.norm) factor = 1.0f / sqrtf(squares / static_cast<float>(in.width) + in.eps);
        }
        // A power of two that brings the largest number to between 512 and 1024 (or whatever, for zeros).
        const int exponent = static_cast<int>(float_bits(largest * factor) >> 23 & 255);
        const int shift = min(max(127 + 9 - exponent, -120), 120);
        const float up = bits_float(static_cast<u32>(127 + shift) << 23);
        if (p.forms & HALVES && threadIdx.x == 0)
            reinterpret_cast<float*>(at + p.scales_at())[cells * 8 + row] = bits_float(static_cast<u32>(127 - shift) << 23);
        for (int cell = warp; cell < cells; cell += WARPS) {
            const int column = cell * CELL + lane * 8;
            float v[8];
            load_eight(x, column, in.width, v);
            if (in.norm) {
#pragma unroll
                for (int i = 0; i < 8; i++) v[i] = column + i < in.width ? v[i] * factor * in.norm[column + i] : 0.0f;
            }
            if (p.forms & DIGITS) store_digits(at, p, row, cell, lane, to_digits(v));
            if (p.forms & HALVES) {
                u32 high[4], low[4];
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const float a = v[2 * i] * up, b = v[2 * i + 1] * up;
                    const u16 ha = float_to_half(a), hb = float_to_half(b);
                    high[i] = ha | static_cast<u32>(hb) << 16;
                    low[i] = float_to_half(a - half_to_float(ha)) |
                             static_cast<u32>(float_to_half(b - half_to_float(hb))) << 16;
                }
                char* plane = at + p.halves_at() + 2 * row * p.half_stride() + column * 2;
                *reinterpret_cast<uint4*>(plane) = {high[0], high[1], high[2], high[3]};
                *reinterpret_cast<uint4*>(plane + p.half_stride()) = {low[0], low[1], low[2], low[3]};
            }
            if (p.forms & FLOATS) {
                float* plane = reinterpret_cast<float*>(at + p.floats_at() + row * p.float_stride()) + column;
                *reinterpret_cast<float4*>(plane) = {v[0], v[1], v[2], v[3]};
                *reinterpret_cast<float4*>(plane + 4) = {v[4], v[5], v[6], v[7]};
            }
        }
    }
    __syncthreads();
}
