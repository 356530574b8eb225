// Cached rows: read where they lie and made float32 one by one, written in the cache's own type.
#pragma once

#include "simd.h"

enum Kind : i64 { F32 = 0, F16 = 1, BF16 = 2 };  // as in penstock.backend.cpu.deepseek_v4.batch

struct Rows {
    const void* data;
    i64 stride;  // elements from one row to the next
    i64 kind;
};

// The most recent rows of a series: position p is at p % capacity.
struct ps_ring {
    void* data;  // [capacity, width]
    i64 capacity, width, kind;
};

PS_INLINE void* row_at(void* data, i64 row, i64 width, i64 kind) {
    return static_cast<char*>(data) + row * width * (kind == F32 ? 4 : 2);
}

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

// The first n values, zeros behind them.  The processor's own conversion is exact like the other.
PS_INLINE vf load_f16(const std::uint16_t* p, i64 n) {
#if defined(__F16C__)
    if (n >= LANES) return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
#endif
    return from_f16(load_u16(p, n));
}

// Row `index` as float32: padded(dim) values, zeros behind the first dim.
PS_INLINE void widen(const Rows& rows, i64 index, i64 dim, float* out) {
    if (rows.kind == F32) {
        const float* row = static_cast<const float*>(rows.data) + index * rows.stride;
        for (i64 d = 0; d < dim; d += LANES) store(out + d, load(row + d, dim - d));
        return;
    }
    const std::uint16_t* row = static_cast<const std::uint16_t*>(rows.data) + index * rows.stride;
    if (rows.kind == BF16) {
        for (i64 d = 0; d < dim; d += LANES) store(out + d, from_bf16(load_u16(row + d, dim - d)));
        return;
    }
    for (i64 d = 0; d < dim; d += LANES) store(out + d, load_f16(row + d, dim - d));
}

// To the nearest, ties to even; what is too large becomes infinity.
PS_INLINE vu to_f16(vf x) {
    vu b = bits<vu>(x), magnitude = b & 0x7fffffffu;
    vu normal = ((magnitude + 0xfffu + (magnitude >> 13 & 1u)) >> 13) - (112u << 10);
    // Added to ½, a number below the smallest normal one is rounded to a multiple of the smallest subnormal one.
    vu small = bits<vu>(bits<vf>(magnitude) + 0.5f) - bits<vu>(splat(0.5f));
    vu h = magnitude < (113u << 23) ? small : normal;
    h = magnitude >= 0x47800000u ? vu{} + 0x7c00u : h;  // 2^16 and more; normal numbers reach it by carrying
    h = magnitude > 0x7f800000u ? vu{} + 0x7e00u : h;   // NaN
    return h | (b >> 16 & 0x8000u);
}

// Not a number stays one.
PS_INLINE vu to_bf16(vf x) {
    vu b = bits<vu>(x);
    return x != x ? vu{} + 0x7fc0u : (b + 0x7fffu + (b >> 16 & 1u)) >> 16;
}

// x [dim] into a row of a cache, to the nearest value of its type, ties to even.
PS_INLINE void narrow(const float* x, i64 dim, i64 kind, void* row) {
    if (kind == F32) {
        std::memcpy(row, x, static_cast<std::size_t>(dim) * sizeof(float));
        return;
    }
    std::uint16_t* out = static_cast<std::uint16_t*>(row);
    for (i64 d = 0; d < dim; d += LANES) {
        const vf v = load(x + d, dim - d);
        const vh h = __builtin_convertvector(kind == F16 ? to_f16(v) : to_bf16(v), vh);
        std::memcpy(out + d, &h, static_cast<std::size_t>(dim - d < LANES ? dim - d : LANES) * sizeof *out);
    }
}
