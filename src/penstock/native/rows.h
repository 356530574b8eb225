// Cached rows, read where they lie and made float32 one by one.
#pragma once

#include "simd.h"

enum Kind : i64 { F32 = 0, F16 = 1, BF16 = 2 };  // as in penstock.kernels.cpu.attention

struct Rows {
    const void* data;
    i64 stride;  // elements from one row to the next
    i64 kind;
};

// Exact, subnormals, infinities and NaN included.
PS_INLINE vf from_f16(vu h) {
    vu magnitude = (h & 0x7fffu) << 13, exponent = magnitude & 0x0f800000u;
    vu value = magnitude + (112u << 23);  // 112: difference of the exponents' biases
    vu special = magnitude + (224u << 23);
    // A subnormal, given the exponent of the smallest normal number, is too large by exactly that number.
    vf small = bits<vf>(magnitude + (113u << 23)) - bits<vf>(vu{} + (113u << 23));
    value = exponent == 0x0f800000u ? special : value;
    value = exponent == 0u ? bits<vu>(small) : value;
    return bits<vf>(value | (h & 0x8000u) << 16);
}

PS_INLINE vf from_bf16(vu h) { return bits<vf>(h << 16); }

PS_INLINE vu load_u16(const std::uint16_t* p, i64 n) {
    vh v = {};
    if (n >= LANES) {
        std::memcpy(&v, p, sizeof v);
    } else {
        std::uint16_t lanes[LANES] = {};
        for (i64 i = 0; i < n; i++) lanes[i] = p[i];
        std::memcpy(&v, lanes, sizeof v);
    }
    return __builtin_convertvector(v, vu);
}

// Row `index` as float32: padded(dim) values, zeros behind the first dim.
PS_INLINE void widen(const Rows& rows, i64 index, i64 dim, float* out) {
    if (rows.kind == F32) {
        const float* row = static_cast<const float*>(rows.data) + index * rows.stride;
        for (i64 d = 0; d < dim; d += LANES) store(out + d, load(row + d, dim - d));
    } else {
        const std::uint16_t* row = static_cast<const std::uint16_t*>(rows.data) + index * rows.stride;
        if (rows.kind == F16)
            for (i64 d = 0; d < dim; d += LANES) store(out + d, from_f16(load_u16(row + d, dim - d)));
        else
            for (i64 d = 0; d < dim; d += LANES) store(out + d, from_bf16(load_u16(row + d, dim - d)));
    }
}
