// Formats that become float32 one by one: F32, F16, BF16 and FP8.
#pragma once

#include "../isa/isa.h"

namespace {

constexpr i64 SPAN = 128;  // columns that share whatever there is to share

template <i64 SIZE, F8 (*LOAD)(const u8*)>
struct PlainFloats {
    static constexpr i64 BYTES = SIZE;  // of one weight
    struct Span {
        const u8* p;
    };
    // The weights of a row from `column` on, a multiple of SPAN.
    static PS_INLINE Span open(const ps_weight& w, i64 row, i64 column) {
        return {static_cast<const u8*>(w.data) + (row * w.columns + column) * BYTES};
    }
    static PS_INLINE F8 weights(const Span&, const u8* p) { return LOAD(p); }
};

PS_INLINE F8 load_f32(const u8* p) { return load(reinterpret_cast<const float*>(p)); }

using F32 = PlainFloats<4, load_f32>;
using F16 = PlainFloats<2, load_f16>;
using BF16 = PlainFloats<2, load_bf16>;

struct FP8 {
    static constexpr i64 BYTES = 1;
    struct Span {
        const u8* p;
        F8 scale;
        bool large;  // 256 · the scale is no float: another multiplication is needed
    };
    static PS_INLINE Span open(const ps_weight& w, i64 row, i64 column) {
        const u8* scales = static_cast<const u8*>(w.scale) + row / 128 * ((w.columns + 127) / 128);
        const std::uint32_t b = scales[column / 128];
        const bool large = b > 246;
        const std::uint32_t bits = b == 255 ? 0x7fc00000 : (large ? b : b + 8) << 23;
        float scale;
        std::memcpy(&scale, &bits, 4);
        return {static_cast<const u8*>(w.data) + row * w.columns + column, splat(scale), large};
    }
    static PS_INLINE F8 weights(const Span& span, const u8* p) {
        F8 v = mul(load_e4m3(p), span.scale);
        return span.large ? mul(v, splat(256)) : v;
    }
};

// Eight weights at `column` of the span, of which `left` are in the row: what is behind its end counts as zero.
template <class Format>
PS_INLINE F8 weights(const typename Format::Span& span, i64 column, i64 left) {
    const u8* p = span.p + column * Format::BYTES;
    if (left >= 8) [[likely]] return Format::weights(span, p);
    u8 copy[8 * Format::BYTES] = {};
    for (i64 i = 0; i < left * Format::BYTES; i++) copy[i] = p[i];
    return Format::weights(span, copy);
}

// As many at `column` of the span as lie side by side in a vector, all of them in the row.
template <class Format>
PS_INLINE Sides side_weights(const typename Format::Span& span, i64 column) {
    const u8* p = span.p + column * Format::BYTES;
#if defined(PENSTOCK_PAIRS)
    return join(Format::weights(span, p), Format::weights(span, p + 8 * Format::BYTES));
#else
    return Format::weights(span, p);
#endif
}

PS_INLINE F8 load(const float* p, i64 left) {
    if (left >= 8) [[likely]] return load(p);
    float copy[8] = {};
    for (i64 i = 0; i < left; i++) copy[i] = p[i];
    return load(copy);
}

}  // namespace
