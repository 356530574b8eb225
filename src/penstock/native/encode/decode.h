// Rows as float32, of the types that checkpoints are published in.  To the bit what the numpy decoders give.
#pragma once

#include "common.h"

namespace {

PS_INLINE void decode_f16(const u8* p, i64 columns, float* out) {
    for (i64 c = 0; c < columns; c++) {
        u16 half;
        std::memcpy(&half, p + 2 * c, 2);
        out[c] = from_f16(half);
    }
}

PS_INLINE void decode_bf16(const u8* p, i64 columns, float* out) {
    for (i64 c = 0; c < columns; c++) {
        u16 upper;
        std::memcpy(&upper, p + 2 * c, 2);
        out[c] = bits<float>(static_cast<u32>(upper) << 16);
    }
}

PS_INLINE void decode_q8_0(const u8* p, i64 columns, float* out) {
    for (i64 c = 0; c < columns; c += 32, p += 34) {
        u16 half;
        std::memcpy(&half, p, 2);
        const float d = from_f16(half);
        for (int i = 0; i < 32; i++) out[c + i] = d * static_cast<float>(static_cast<std::int8_t>(p[2 + i]));
    }
}

// 2^(e − 127); 255 is NaN.
PS_INLINE float from_e8m0(u8 e) {
    return bits<float>(e == 255 ? 0x7fc00000u : e ? static_cast<u32>(e) << 23 : 0x00400000u);
}

struct E2M1 {
    float pair[256][2];  // both numbers of a byte, low nibble first
    constexpr E2M1() : pair() {
        // A zero is positive whatever its sign says.
        const float values[16] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6, 0, -0.5f, -1, -1.5f, -2, -3, -4, -6};
        for (int byte = 0; byte < 256; byte++) {
            pair[byte][0] = values[byte & 15];
            pair[byte][1] = values[byte >> 4];
        }
    }
};
constexpr E2M1 TABLE_E2M1;

PS_INLINE void decode_fp4(const u8* p, const u8* scale, i64 columns, float* out) {
    for (i64 c = 0; c < columns; c += 32, p += 16) {
        const float factor = from_e8m0(*scale++);
        for (int i = 0; i < 16; i++) std::memcpy(out + c + 2 * i, TABLE_E2M1.pair[p[i]], 8);
        for (int i = 0; i < 32; i++) out[c + i] *= factor;
    }
}

PS_INLINE void decode_mxfp4(const u8* p, i64 columns, float* out) {
    for (i64 c = 0; c < columns; c += 32, p += 17) {
        // 255 is one more power of two here; twice the number times half the scale, as the largest would overflow.
        const float half = *p > 1 ? bits<float>(static_cast<u32>(*p - 1) << 23)
                                  : bits<float>(*p ? 0x00400000u : 0x00200000u);
        for (int i = 0; i < 16; i++) {
            out[c + i] = 2.0f * TABLE_E2M1.pair[p[1 + i]][0] * half;
            out[c + 16 + i] = 2.0f * TABLE_E2M1.pair[p[1 + i]][1] * half;
        }
    }
}

PS_INLINE vf from_e4m3(vu byte) {
    const vu sign = (byte & 0x80u) << 24, rest = byte & 0x7fu;
    const vf normal = bits<vf>((rest << 20) + (120u << 23));  // 120: difference of the exponents' biases
    const vf small = __builtin_convertvector(bits<vi>(rest), vf) * 0x1p-9f;
    vu value = rest < 8u ? bits<vu>(small) : bits<vu>(normal);
    value = rest == 0x7fu ? vu{} + 0x7fc00000u : value;
    return bits<vf>(value | sign);
}

// One scale for 128 columns; `scale` is that of the row's tile.
PS_INLINE void decode_fp8(const u8* p, const u8* scale, i64 columns, float* out) {
    i64 c = 0;
    for (; c + LANES <= columns; c += LANES) store(out + c, from_e4m3(load_u8(p + c)) * from_e8m0(scale[c / 128]));
    if (c < columns) {
        u8 rest[LANES] = {};
        std::memcpy(rest, p + c, static_cast<std::size_t>(columns - c));
        store(out + c, from_e4m3(load_u8(rest)) * from_e8m0(scale[c / 128]), columns - c);
    }
}

PS_INLINE void decode_row(const ps_weight& w, i64 row, float* out) {
    const u8 *data = static_cast<const u8*>(w.data), *scale = static_cast<const u8*>(w.scale);
    const i64 n = w.columns;
    switch (w.type) {
        case W_F32: std::memcpy(out, data + row * n * 4, static_cast<std::size_t>(n) * 4); break;
        case W_F16: decode_f16(data + row * n * 2, n, out); break;
        case W_BF16: decode_bf16(data + row * n * 2, n, out); break;
        case W_Q8_0: decode_q8_0(data + row * (n / 32 * 34), n, out); break;
        case W_MXFP4: decode_mxfp4(data + row * (n / 32 * 17), n, out); break;
        case W_FP8: decode_fp8(data + row * n, scale + row / 128 * ((n + 127) / 128), n, out); break;
        case W_FP4: decode_fp4(data + row * (n / 2), scale + row * (n / 32), n, out); break;
    }
}

}  // namespace
