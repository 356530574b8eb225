// Packed weights → halfs in registers, as the tensor cores' left operand (see penstock.backend.cuda.layouts for the cells).
//
// A step is 32 columns of a tile of 16 rows, in two slices of 16: lane 4g + t has columns 8t + 4s … of rows g and g + 8.
//
//   a[s][0]: row g,     columns 8t + 4s,     + 1        a[s][1]: row g + 8, the same
//   a[s][2]: row g,     columns 8t + 4s + 2, + 3        a[s][3]: row g + 8, the same
//
// so inputs lie in the order of `input_place`.  Numbers are made 64 times as large (`up`), so that small ones keep their bits; what
// is rounded is the product of a code and its scale, to eleven bits.  Instructions for 512 weights in the machine code: Q8_0 30,
// IQ2_XXS 46, the K-quants about 50.
#pragma once

#include "common.cuh"

constexpr int CELL = 256, STEPS = 8, STEP = 32;

enum Format { Q8_0 = 0, F16 = 1, IQ2_XXS = 2, Q2_K = 3, Q4_K = 4, MXFP4 = 5, BF16 = 6, F32 = 7 };

// Where column c of 32 lies among the inputs: c = 8q + 4s + 2h + e → 16s + 8h + 2q + e
PS_DEVICE constexpr int input_place(int c) { return (c >> 2 & 1) * 16 + (c >> 1 & 1) * 8 + (c >> 3) * 2 + (c & 1); }

// ── pairs of halfs ───────────────────────────────────────────────────────────────────────────────────────────────────

PS_DEVICE u32 sub_halves(u32 a, u32 b) {
    u32 d;
    asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
    return d;
}
PS_DEVICE u32 mul_halves(u32 a, u32 b) {
    u32 d;
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
    return d;
}
PS_DEVICE u32 fma_halves(u32 a, u32 b, u32 c) {
    u32 d;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}
PS_DEVICE u32 to_halves(float low, float high) {
    u32 d;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(high), "f"(low));
    return d;
}
PS_DEVICE u32 both_low(u32 w) { return permute(w, 0, 0x1010); }
PS_DEVICE u32 both_high(u32 w) { return permute(w, 0, 0x3232); }

constexpr u32 TWO_1024 = 0x64006400, TWO_1152 = 0x64806480, TWO_64 = 0x54005400;

// Bytes 0 and 1, or 2 and 3, of four small numbers without sign.  0x6400 + n is 1024 + n.
PS_DEVICE u32 first_bytes(u32 codes) { return sub_halves(permute(codes, TWO_1024, 0x5150), TWO_1024); }
PS_DEVICE u32 last_bytes(u32 codes) { return sub_halves(permute(codes, TWO_1024, 0x5352), TWO_1024); }

// ── formats ──────────────────────────────────────────────────────────────────────────────────────────────────────────
//
// bytes: of a cell; columns: of what is streamed at a time, whole steps one behind the other; down: what undoes `up`.
// `load` takes what a piece needs throughout, `step` gives the numbers of step i of the piece.

template <int FORMAT>
struct Unpack;

template <>
struct Unpack<Q8_0> {
    static constexpr int bytes = 4352, columns = CELL;
    static constexpr float down = 1.0f / 64;
    const char* cell;
    int lane;
    PS_DEVICE void load(const char* piece, const char*, int lane_, int) { cell = piece, lane = lane_; }
    PS_DEVICE void step(int i, u32 (&a)[2][4]) const {
        const uint4 w = load16(cell + i * 512 + lane * 16);
        const u32 d = mul_halves(load4(cell + 4096 + lane / 4 * 32 + i * 4), TWO_64);
        const u32 scale[2] = {both_low(d), both_high(d)}, codes[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
        for (int r = 0; r < 4; r++) {
            const u32 lifted = codes[r] ^ 0x80808080;  // + 128
            a[r / 2][r % 2] = mul_halves(sub_halves(permute(lifted, TWO_1024, 0x5150), TWO_1152), scale[r % 2]);
            a[r / 2][r % 2 + 2] = mul_halves(sub_halves(permute(lifted, TWO_1024, 0x5352), TWO_1152), scale[r % 2]);
        }
    }
};

template <>
struct Unpack<F16> {
    static constexpr int bytes = 8192, columns = 64;
    static constexpr float down = 1;
    const char* from;
    PS_DEVICE void load(const char* piece, const char*, int lane, int) {
        const int g = lane / 4, t = lane % 4;
        from = piece + t / 2 * 512 + (4 * g + t % 2 * 2) * 16;
    }
    PS_DEVICE void step(int i, u32 (&a)[2][4]) const {
#pragma unroll
        for (int s = 0; s < 2; s++) {
            const uint4 w = load16(from + i * 1024 + s * 16);
            a[s][0] = w.x, a[s][1] = w.y, a[s][2] = w.z, a[s][3] = w.w;
        }
    }
};

template <>
struct Unpack<BF16> {
    static constexpr int bytes = 8192, columns = 64;
    static constexpr float down = 1.0f / 64;
    const char* from;
    PS_DEVICE void load(const char* piece, const char*, int lane, int) {
        const int g = lane / 4, t = lane % 4;
        from = piece + t / 2 * 512 + (4 * g + t % 2 * 2) * 16;
    }
    PS_DEVICE void step(int i, u32 (&a)[2][4]) const {
#pragma unroll
        for (int s = 0; s < 2; s++) {
            const uint4 w = load16(from + i * 1024 + s * 16);
            const u32 words[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
            for (int r = 0; r < 4; r++)
                a[s][r] = to_halves(bits_float(words[r] << 16) * 64, bits_float(words[r] & 0xffff0000) * 64);
        }
    }
};

// In two parts: pass 1 has what the halfs of the other passes leave over.
template <>
struct Unpack<F32> {
    static constexpr int bytes = 16384, columns = 64;
    static constexpr float down = 1.0f / 64;
    const char* from;
    bool rest;
    PS_DEVICE void load(const char* piece, const char*, int lane, int pass) {
        const int g = lane / 4, t = lane % 4;
        from = piece + t / 2 * 1024 + (4 * g + t % 2 * 2) * 32;
        rest = pass == 1;
    }
    PS_DEVICE void step(int i, u32 (&a)[2][4]) const {
#pragma unroll
        for (int s = 0; s < 2; s++) {
            const uint4 x = load16(from + i * 2048 + s * 32), y = load16(from + i * 2048 + s * 32 + 16);
            const u32 words[8] = {x.x, x.y, x.z, x.w, y.x, y.y, y.z, y.w};
#pragma unroll
            for (int r = 0; r < 4; r++) {
                const float v = bits_float(words[2 * r]) * 64, w = bits_float(words[2 * r + 1]) * 64;
                a[s][r] = to_halves(v, w);
                if (rest) a[s][r] = to_halves(v - low_half(a[s][r]), w - high_half(a[s][r]));
            }
        }
    }
};

// The grid of IQ2_XXS as halfs, eight times: copy c of entry e at (8 e + c) · 16 bytes, so that lanes never meet in a bank.
constexpr int HALF_GRID_BYTES = 256 * 8 * 16;

PS_DEVICE void fill_half_grid(char* grid, const uint2* entries) {
    for (int i = threadIdx.x; i < 256 * 8; i += blockDim.x) {
        const uint2 e = entries[i / 8];
        reinterpret_cast<uint4*>(grid)[i] = {first_bytes(e.x), last_bytes(e.x), first_bytes(e.y), last_bytes(e.y)};
    }
}

template <>
struct Unpack<IQ2_XXS> {
    static constexpr int bytes = 1120, columns = CELL;
    static constexpr float down = 1.0f / 64;
    const char *cell, *copy;
    u32 d;  // of rows g and g + 8, times 64 / 8
    uint2 nibbles;
    int lane;
    PS_DEVICE void load(const char* piece, const char* grid, int lane_, int) {
        cell = piece, lane = lane_, copy = grid + lane % 8 * 16;
        d = mul_halves(load4(piece + 1088 + lane / 4 * 4), 0x48004800);
        nibbles = load8(piece + 1024 + lane / 4 * 8);
    }
    static PS_DEVICE u32 scale(u32 nibbles, int i, u32 d) {  // (2 n + 1) d
        const u32 n = (nibbles >> 4 * i & 15) << 1 | 0x6401;
        return mul_halves(sub_halves(both_low(n), TWO_1024), d);
    }
    PS_DEVICE void step(int i, u32 (&a)[2][4]) const {
        const u32 pair = *reinterpret_cast<const u16*>(cell + lane * 16 + i * 2), bits = load4(cell + 512 + lane * 16 + i / 2 * 4);
        const u32 scales[2] = {scale(nibbles.x, i, both_low(d)), scale(nibbles.y, i, both_high(d))};
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const uint4 v = load16(copy + (h ? pair >> 8 : pair & 255) * 128);
            const u32 words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
            for (int s = 0; s < 2; s++) {
                const u32 signs = bits << (7 - (i % 2 * 4 + 2 * s + h));  // of byte b at its highest bit
                a[s][h] = mul_halves(words[2 * s] ^ (permute(signs, 0, 0x1404) & 0x80008000), scales[h]);
                a[s][h + 2] = mul_halves(words[2 * s + 1] ^ (permute(signs, 0, 0x3424) & 0x80008000), scales[h]);
            }
        }
    }
};

// value = scale · code − minimum; of four codes in a word.
PS_DEVICE void scaled_codes(u32 codes, u32 scale, u32 minimum, u32& first, u32& last) {
    first = fma_halves(first_bytes(codes), scale, minimum);
    last = fma_halves(last_bytes(codes), scale, minimum);
}

template <>
struct Unpack<Q2_K> {
    static constexpr int bytes = 1344, columns = CELL;
    static constexpr float down = 1.0f / 64;
    const char* cell;
    u32 d[2];  // (d, −dmin) · 64 of rows g, g + 8
    int lane;
    PS_DEVICE void load(const char* piece, const char*, int lane_, int) {
        cell = piece, lane = lane_;
        const uint2 w = load8(piece + 1280 + lane / 4 * 8);
        d[0] = mul_halves(w.x, 0xd4005400), d[1] = mul_halves(w.y, 0xd4005400);
    }
    PS_DEVICE void step(int i, u32 (&a)[2][4]) const {
        const u32 word = load4(cell + i / 4 * 512 + lane * 16 + i % 4 * 4);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const u32 b = *reinterpret_cast<const u8*>(cell + 1024 + lane / 4 * 32 + lane % 4 / 2 * 16 + h * 8 + i);
            const u32 both = mul_halves(sub_halves((b & 15) | (b << 12 & 0x000f0000) | TWO_1024, TWO_1024), d[h]);
            const u32 scale = both_low(both), minimum = both_high(both);
#pragma unroll
            for (int s = 0; s < 2; s++) scaled_codes(word >> (2 * (2 * s + h)) & 0x03030303, scale, minimum, a[s][h], a[s][h + 2]);
        }
    }
};

template <>
struct Unpack<Q4_K> {
    static constexpr int bytes = 2368, columns = CELL;
    static constexpr float down = 1.0f / 64;
    const char* cell;
    u32 d[2];
    int lane;
    PS_DEVICE void load(const char* piece, const char*, int lane_, int) {
        cell = piece, lane = lane_;
        const uint2 w = load8(piece + 2304 + lane / 4 * 8);
        d[0] = mul_halves(w.x, 0xd4005400), d[1] = mul_halves(w.y, 0xd4005400);
    }
    PS_DEVICE void step(int i, u32 (&a)[2][4]) const {
        const uint2 w = load8(cell + i / 2 * 512 + lane * 16 + i % 2 * 8);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const char* small = cell + 2048 + lane / 4 * 32 + h * 16 + i;
            const u32 pair = *reinterpret_cast<const u8*>(small) | static_cast<u32>(*reinterpret_cast<const u8*>(small + 8)) << 16;
            const u32 both = mul_halves(sub_halves(pair | TWO_1024, TWO_1024), d[h]);
            const u32 scale = both_low(both), minimum = both_high(both);
#pragma unroll
            for (int s = 0; s < 2; s++) scaled_codes((s ? w.y : w.x) >> 4 * h & 0x0f0f0f0f, scale, minimum, a[s][h], a[s][h + 2]);
        }
    }
};

template <>
struct Unpack<MXFP4> {
    static constexpr int bytes = 2176, columns = CELL;
    static constexpr float down = 1.0f / 64;
    const char* cell;
    int lane;
    PS_DEVICE void load(const char* piece, const char*, int lane_, int) { cell = piece, lane = lane_; }
    PS_DEVICE void step(int i, u32 (&a)[2][4]) const {
        const uint2 w = load8(cell + i / 2 * 512 + lane * 16 + i % 2 * 8);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const u32 e = *reinterpret_cast<const u8*>(cell + 2048 + lane / 4 * 16 + h * 8 + i);
            const float power = e > 248 ? INFINITY : bits_float((e + 6) << 23);  // 2^(e − 127) · 64
            const u32 scale = to_halves(power, power);
#pragma unroll
            for (int s = 0; s < 2; s++) {
                const u32 codes = (s ? w.y : w.x) >> 16 * h;
                // The upper bytes of 0, ½, 1, 1½, 2, 3, 4, 6 as halfs; then the signs of nibbles 0 … 3.
                const u32 sizes = permute(0x3e3c3800, 0x46444240, codes & 0x7777);
                const u32 upper = sizes ^ (permute(codes << 4, codes, 0x5140) & 0x80808080);
                a[s][h] = mul_halves(permute(upper, 0, 0x1404), scale);
                a[s][h + 2] = mul_halves(permute(upper, 0, 0x3424), scale);
            }
        }
    }
};
