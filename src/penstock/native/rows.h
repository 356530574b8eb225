// Cached rows: read where they lie and made float32 one by one, written in the cache's own type.
#pragma once

#include "simd.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

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

#if defined(__x86_64__)
// The processor's own conversion, a row at a time.  Exact like the other, so it does not matter which one ran.
__attribute__((target("avx,f16c"))) inline void widen_f16c(const std::uint16_t* row, i64 dim, float* out) {
    for (i64 d = 0; d + LANES <= dim; d += LANES)
        _mm256_storeu_ps(out + d, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(row + d))));
}

inline bool has_f16c() {
    static const bool found = __builtin_cpu_supports("f16c");
    return found;
}
#else
inline void widen_f16c(const std::uint16_t*, i64, float*) {}
inline bool has_f16c() { return false; }
#endif

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
    i64 d = 0;
    if (has_f16c()) {
        widen_f16c(row, dim, out);
        d = dim / LANES * LANES;
    }
    for (; d < dim; d += LANES) store(out + d, from_f16(load_u16(row + d, dim - d)));
}

#if defined(__aarch64__)
using half = __fp16;  // GCC 12 has no _Float16 in C++ there
#else
using half = _Float16;
#endif

// x [dim] into a row of a cache, to the nearest value of its type, ties to even.
inline void narrow(const float* x, i64 dim, i64 kind, void* row) {
    if (kind == F32) {
        std::memcpy(row, x, static_cast<std::size_t>(dim) * sizeof(float));
    } else if (kind == F16) {
        half* out = static_cast<half*>(row);
        for (i64 d = 0; d < dim; d++) out[d] = static_cast<half>(x[d]);
    } else {
        std::uint16_t* out = static_cast<std::uint16_t*>(row);
        for (i64 d = 0; d < dim; d++) {
            const std::uint32_t b = bits<std::uint32_t>(x[d]);
            out[d] = x[d] != x[d] ? 0x7fc0 : static_cast<std::uint16_t>((b + 0x7fff + (b >> 16 & 1)) >> 16);
        }
    }
}
