// Types with one way to be encoded: F32, F16, BF16, Q8_0 and MXFP4.  The bytes are those of the `gguf` package.
#pragma once

#include "common.h"

namespace {

PS_INLINE void encode_f32(const float* x, i64 columns, u8* out) {
    std::memcpy(out, x, static_cast<std::size_t>(columns) * sizeof(float));
}

PS_INLINE void encode_f16(const float* x, i64 columns, u8* out) {
    for (i64 c = 0; c < columns; c++) put_u16(out + 2 * c, to_f16(x[c]));
}

PS_INLINE void encode_bf16(const float* x, i64 columns, u8* out) {
    for (i64 c = 0; c < columns; c++) {
        const u32 b = bits<u32>(x[c]);
        // Rounding could carry a NaN over into infinity: its upper half stays, with the quiet bit set.
        const u32 rounded = (b & 0x7fffffffu) > 0x7f800000u ? b | 0x00400000u : b + 0x7fffu + (b >> 16 & 1u);
        put_u16(out + 2 * c, static_cast<u16>(rounded >> 16));
    }
}

// Bits of magnitudes rise with them, and those of NaN are above all.
PS_INLINE bool within_limit(const float* x, i64 columns, float limit) {
    u32 most = 0;
    for (i64 c = 0; c < columns; c++) {
        const u32 b = bits<u32>(x[c]) & 0x7fffffffu;
        most = b > most ? b : most;
    }
    return most <= bits<u32>(limit);
}

PS_INLINE vf truncated(vf x) { return __builtin_convertvector(__builtin_convertvector(x, vi), vf); }

PS_INLINE float largest(const float* x, i64 n) {
    vf most = {};
    for (i64 i = 0; i < n; i += LANES) most = larger(bits<vf>(bits<vu>(load(x + i)) & 0x7fffffffu), most);
    float lanes[LANES], top = 0;
    store(lanes, most);
    for (float lane : lanes) top = lane > top ? lane : top;
    return top;
}

// The largest magnitude becomes 127, halves round away from zero.
PS_INLINE void encode_q8_0(const float* x, const float*, u8* out) {
    const float scale = largest(x, 32) / 127.0f;
    const vf factor = splat(inverse(scale));
    put_u16(out, to_f16(scale));
    vi codes[4];
    for (int i = 0; i < 4; i++) {
        vf code = load(x + 8 * i) * factor, whole = truncated(code);
        whole += truncated((code - whole) * 2.0f);  // exact, unlike trunc(code + ½), which is wrong just below ½
        codes[i] = __builtin_convertvector(whole, vi);
    }
    put_bytes<32>(out + 2, codes);
}

// ⌊log2 x⌋ as writers of GGUF take it: of the logarithm rounded to float32, which just below a power of two is that
// power's.
PS_INLINE int floor_log2(float x) {
    const u32 b = bits<u32>(x);
    if ((b & 0x7fffffu) < 0x7fff00u && b >= 0x00800000u) return static_cast<int>(b >> 23) - 127;
    return static_cast<int>(std::floor(static_cast<float>(std::log2(static_cast<double>(x)))));
}

// The scale puts the largest magnitude into [4, 8); above 6 it saturates.  Half-way lies what is nearer to zero.
PS_INLINE void encode_mxfp4(const float* x, const float*, u8* out) {
    const float top = largest(x, 32);
    int e = top > 0 ? floor_log2(top) + 125 : 0;
    e = e < 0 ? 0 : e;
    out[0] = static_cast<u8>(e);
    // 2^(128 − e), in two factors: for e = 0 it is no float32.
    const float factor = e > 0 ? bits<float>(static_cast<u32>(255 - e) << 23) : 0x1p127f, rest = e > 0 ? 1.0f : 2.0f;
    const float halfway[] = {0.5f, 1.5f, 2.5f, 3.5f, 5.0f, 7.0f, 10.0f};
    vi codes[4];
    for (int i = 0; i < 4; i++) {
        const vu all = bits<vu>(load(x + 8 * i));
        const vf twice = bits<vf>(all & 0x7fffffffu) * factor * rest;
        vi code = {};
        for (float limit : halfway) code -= twice > splat(limit);  // true is −1
        codes[i] = code | ((code > vi{}) & bits<vi>(all >> 28 & 8u));
    }
    const vi pairs[2] = {codes[0] | codes[2] << 4, codes[1] | codes[3] << 4};
    put_bytes<16>(out + 1, pairs);
}

}  // namespace
