// Packed weights → halfs in registers, as the tensor cores' left operand (see penstock.backend.cuda.layouts for the cells).
//
// A step is 32 columns of a tile of 16 rows, in two slices of 16: lane 4g + t has columns 8t + 4s … of rows g and g + 8.
//
//   a[s][0]: row g,     columns 8t + 4s,     + 1        a[s][1]: row g + 8, the same
//   a[s][2]: row g,     columns 8t + 4s + 2, + 3        a[s][3]: row g + 8, the same
//
// or, where gate and up are multiplied side by side, eight rows of the one and the same eight of the other.  So inputs lie in the order of
// `input_place`.  Numbers are made 64 times as large (`up`), so that small ones keep their bits; what
// is rounded is the product of a code and its scale, to eleven bits.  Instructions for 512 weights in the machine code: Q8_0 30,
// IQ2_XXS 46, the K-quants about 50.
#pragma once

#include "common.cuh"

constexpr int CELL = 256, STEPS = 8, STEP = 32;

enum Format { Q8_0 = 0, F16 = 1, IQ2_XXS = 2, Q2_K = 3, Q4_K = 4, MXFP4 = 5, BF16 = 6, F32 = 7, Q6_K = 8, FP8 = 9 };

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
// bytes: of a cell; codes: of its plane of codes where that lies step by step, whatever is behind; columns: of what is streamed at a time,
// whole steps one behind the other; down: what undoes `up`.

// Where a warp's two times eight rows are: half h of a cell has rows 8 h …
struct TwoHalves {
    const char* cell[2];
    int half;  // which of each, where there are two cells
#if WARPGROUPS
    PS_DEVICE const char* behind(int k) const { return cell[k]; }
#else  // what lies behind the plane of codes comes by itself
    const char* rest[2];
    PS_DEVICE const char* behind(int k) const { return rest[k]; }
#endif
};

template <int FORMAT>
struct Unpack;

// Of four words (register 0 … 3 of a lane), those of row half h.
PS_DEVICE uint2 of_half(uint4 w, int h) { return h ? uint2{w.y, w.w} : uint2{w.x, w.z}; }

template <>
struct Unpack<Q8_0> {
    static constexpr int bytes = 4352, codes = 4096, columns = CELL;
    static constexpr float down = 1.0f / 64;
    template <bool PAIRED>
    static PS_DEVICE void step(const TwoHalves& from, const char*, int lane, int i, int, u32 (&a)[2][4]) {
        const uint4 w = load16(from.cell[0] + i * 512 + lane * 16);
        const int scales = 4096 + lane / 4 * 32 + i * 4;
        uint2 codes[2];
        u32 d;
        if (PAIRED) {
            const uint4 v = load16(from.cell[1] + i * 512 + lane * 16);
            codes[0] = of_half(w, from.half), codes[1] = of_half(v, from.half);
            d = permute(load4(from.behind(0) + scales), load4(from.behind(1) + scales), from.half ? 0x7632 : 0x5410);
        } else {
            codes[0] = of_half(w, 0), codes[1] = of_half(w, 1);
            d = load4(from.behind(0) + scales);
        }
        d = mul_halves(d, TWO_64);
#pragma unroll
        for (int k = 0; k < 2; k++) {
            const u32 scale = k ? both_high(d) : both_low(d);
#pragma unroll
            for (int s = 0; s < 2; s++) {
                const u32 lifted = (s ? codes[k].y : codes[k].x) ^ 0x80808080;  // + 128
                a[s][k] = mul_halves(sub_halves(permute(lifted, TWO_1024, 0x5150), TWO_1152), scale);
                a[s][k + 2] = mul_halves(sub_halves(permute(lifted, TWO_1024, 0x5352), TWO_1152), scale);
            }
        }
    }
};

// F16 and BF16: steps of 16 columns, of which lane 4g + t has 4t …: other lanes' words are read.
PS_DEVICE int plain_place(int lane) { return lane % 4 / 2 * 32 + lane / 4 * 4 + lane % 2 * 2; }

template <bool PAIRED>
PS_DEVICE uint4 load_plain(const TwoHalves& from, int at) {
    const uint4 w = load16(from.cell[0] + at);
    if (!PAIRED) return w;
    const uint2 gate = of_half(w, from.half), up = of_half(load16(from.cell[1] + at), from.half);
    return {gate.x, up.x, gate.y, up.y};
}

template <>
struct Unpack<F16> {
    static constexpr int bytes = 8192, codes = bytes, columns = 64;
    static constexpr float down = 1;
    template <bool PAIRED>
    static PS_DEVICE void step(const TwoHalves& from, const char*, int lane, int i, int, u32 (&a)[2][4]) {
#pragma unroll
        for (int s = 0; s < 2; s++) {
            const uint4 w = load_plain<PAIRED>(from, i * 1024 + (plain_place(lane) + s) * 16);
            a[s][0] = w.x, a[s][1] = w.y, a[s][2] = w.z, a[s][3] = w.w;
        }
    }
};

template <>
struct Unpack<BF16> {
    static constexpr int bytes = 8192, codes = bytes, columns = 64;
    static constexpr float down = 1.0f / 64;
    template <bool PAIRED>
    static PS_DEVICE void step(const TwoHalves& from, const char*, int lane, int i, int, u32 (&a)[2][4]) {
#pragma unroll
        for (int s = 0; s < 2; s++) {
            const uint4 w = load_plain<PAIRED>(from, i * 1024 + (plain_place(lane) + s) * 16);
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
    static constexpr int bytes = 16384, codes = bytes, columns = 64;
    static constexpr float down = 1.0f / 64;
    template <bool PAIRED>
    static PS_DEVICE void step(const TwoHalves& from, const char*, int lane, int i, int pass, u32 (&a)[2][4]) {
#pragma unroll
        for (int s = 0; s < 2; s++) {
            const int at = i * 2048 + (plain_place(lane) + s) * 32;
#pragma unroll
            for (int r = 0; r < 4; r++) {  // words 2r, 2r + 1: row half r % 2
                const int word = PAIRED ? r / 2 * 4 + from.half * 2 : 2 * r;
                const uint2 w = load8(from.cell[PAIRED ? r % 2 : 0] + at + word * 4);
                const float x = bits_float(w.x) * 64, y = bits_float(w.y) * 64;
                a[s][r] = to_halves(x, y);
                if (pass == 1) a[s][r] = to_halves(x - low_half(a[s][r]), y - high_half(a[s][r]));
            }
        }
    }
};

// As Q8_0, with a scale for sixteen columns: those of lanes t / 2.
template <>
struct Unpack<Q6_K> {
    static constexpr int bytes = 4384, codes = 4096, columns = CELL;
    static constexpr float down = 1.0f / 64;
    template <bool PAIRED>
    static PS_DEVICE void step(const TwoHalves& from, const char*, int lane, int i, int, u32 (&a)[2][4]) {
        const uint4 w = load16(from.cell[0] + i * 512 + lane * 16);
#pragma unroll
        for (int k = 0; k < 2; k++) {
            const char *cell = from.cell[PAIRED ? k : 0], *behind = from.behind(PAIRED ? k : 0);
            const int h = PAIRED ? from.half : k;
            const uint2 codes = of_half(PAIRED && k ? load16(cell + i * 512 + lane * 16) : w, h);
            const u32 small = *reinterpret_cast<const u8*>(behind + 4096 + lane / 4 * 32 + h * 16 + 2 * i + lane % 4 / 2) ^ 0x80;  // + 128
            const u32 d = mul_halves(both_low(*reinterpret_cast<const u16*>(behind + 4352 + lane / 4 * 4 + h * 2)), TWO_64);
            const u32 scale = mul_halves(sub_halves(both_low(small | 0x6400), TWO_1152), d);
#pragma unroll
            for (int s = 0; s < 2; s++) {
                const u32 lifted = (s ? codes.y : codes.x) ^ 0x80808080;
                a[s][k] = mul_halves(sub_halves(permute(lifted, TWO_1024, 0x5150), TWO_1152), scale);
                a[s][k + 2] = mul_halves(sub_halves(permute(lifted, TWO_1024, 0x5352), TWO_1152), scale);
            }
        }
    }
};

// Two e4m3 numbers as halfs, exact.
PS_DEVICE u32 halves_of_fp8(u32 pair) {
#if CAPABILITY >= 890
    u32 d;
    asm("{ .reg .b16 s; cvt.u16.u32 s, %1; cvt.rn.f16x2.e4m3x2 %0, s; }" : "=r"(d) : "r"(pair));
    return d;
#else  // exponents of halfs begin 8 lower; and what is no number (127) becomes 480, which halfs have
    const u32 upper = permute(pair, 0, 0x1404);
    return mul_halves(upper & 0x80008000 | (upper & 0x7f007f00) >> 1, 0x5c005c00);
#endif
}

// In the order of F16, 128 columns to an exponent.
template <>
struct Unpack<FP8> {
    static constexpr int bytes = 4128, codes = 4096, columns = CELL;
    static constexpr float down = 1.0f / 64;
    template <bool PAIRED>
    static PS_DEVICE void step(const TwoHalves& from, const char*, int lane, int i, int, u32 (&a)[2][4]) {
#pragma unroll
        for (int k = 0; k < 2; k++) {
            const char *cell = from.cell[PAIRED ? k : 0], *behind = from.behind(PAIRED ? k : 0);
            const int h = PAIRED ? from.half : k;
            const u32 e = *reinterpret_cast<const u8*>(behind + 4096 + lane / 4 * 4 + h * 2 + i / 4);
            const float power = e > 248 ? INFINITY : bits_float((e + 6) << 23);  // 2^(e − 127) · 64
            const u32 scale = to_halves(power, power);
#pragma unroll
            for (int s = 0; s < 2; s++) {
                const uint2 w = load8(cell + i * 512 + (plain_place(lane) + s) * 8);  // pairs of both rows
                a[s][k] = mul_halves(halves_of_fp8(h ? w.x >> 16 : w.x & 0xffff), scale);
                a[s][k + 2] = mul_halves(halves_of_fp8(h ? w.y >> 16 : w.y & 0xffff), scale);
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
    static constexpr int bytes = 1120, codes = 0, columns = CELL;
    static constexpr float down = 1.0f / 64;
    template <bool PAIRED>
    static PS_DEVICE void step(const TwoHalves& from, const char* grid, int lane, int i, int, u32 (&a)[2][4]) {
#pragma unroll
        for (int k = 0; k < 2; k++) {
            const char* cell = from.cell[PAIRED ? k : 0];
            const int h = PAIRED ? from.half : k;
            const u32 index = *reinterpret_cast<const u8*>(cell + lane * 16 + i * 2 + h);
            const u32 bits = load4(cell + 512 + lane * 16 + i / 2 * 4);
            const u32 nibbles = load4(cell + 1024 + lane / 4 * 8 + h * 4);
            const u32 d = *reinterpret_cast<const u16*>(cell + 1088 + lane / 4 * 4 + h * 2);
            // (2 n + 1) · d · 64 / 8
            const u32 n = (nibbles >> 4 * i & 15) << 1 | 0x6401;
            const u32 scale = mul_halves(sub_halves(both_low(n), TWO_1024), mul_halves(both_low(d), 0x48004800));
            const uint4 v = load16(grid + lane % 8 * 16 + index * 128);
            const u32 words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
            for (int s = 0; s < 2; s++) {
                const u32 signs = bits << (7 - (i % 2 * 4 + 2 * s + h));  // of byte b at its highest bit
                a[s][k] = mul_halves(words[2 * s] ^ (permute(signs, 0, 0x1404) & 0x80008000), scale);
                a[s][k + 2] = mul_halves(words[2 * s + 1] ^ (permute(signs, 0, 0x3424) & 0x80008000), scale);
            }
        }
    }
};

// value = scale · code − minimum; of four codes in a word.
PS_DEVICE void scaled_codes(u32 codes, u32 scale, u32 minimum, u32& first, u32& last) {
    first = fma_halves(first_bytes(codes), scale, minimum);
    last = fma_halves(last_bytes(codes), scale, minimum);
}
// scale | minimum << 16, small integers, times d | dmin << 16, times 64 and − 64
PS_DEVICE u32 scale_and_minimum(u32 both, u32 d) {
    return mul_halves(sub_halves(both | TWO_1024, TWO_1024), mul_halves(d, 0xd4005400));
}

template <>
struct Unpack<Q2_K> {
    static constexpr int bytes = 1344, codes = 0, columns = CELL;
    static constexpr float down = 1.0f / 64;
    template <bool PAIRED>
    static PS_DEVICE void step(const TwoHalves& from, const char*, int lane, int i, int, u32 (&a)[2][4]) {
#pragma unroll
        for (int k = 0; k < 2; k++) {
            const char* cell = from.cell[PAIRED ? k : 0];
            const int h = PAIRED ? from.half : k;
            const u32 word = load4(cell + i / 4 * 512 + lane * 16 + i % 4 * 4) >> 2 * h;
            const u32 b = *reinterpret_cast<const u8*>(cell + 1024 + lane / 4 * 32 + lane % 4 / 2 * 16 + h * 8 + i);
            const u32 both = scale_and_minimum((b & 15) | (b << 12 & 0x000f0000), load4(cell + 1280 + lane / 4 * 8 + h * 4));
#pragma unroll
            for (int s = 0; s < 2; s++) scaled_codes(word >> 4 * s & 0x03030303, both_low(both), both_high(both), a[s][k], a[s][k + 2]);
        }
    }
};

template <>
struct Unpack<Q4_K> {
    static constexpr int bytes = 2368, codes = 2048, columns = CELL;
    static constexpr float down = 1.0f / 64;
    template <bool PAIRED>
    static PS_DEVICE void step(const TwoHalves& from, const char*, int lane, int i, int, u32 (&a)[2][4]) {
#pragma unroll
        for (int k = 0; k < 2; k++) {
            const char *cell = from.cell[PAIRED ? k : 0], *behind = from.behind(PAIRED ? k : 0);
            const int h = PAIRED ? from.half : k;
            const uint2 w = load8(cell + i / 2 * 512 + lane * 16 + i % 2 * 8);
            const u8* small = reinterpret_cast<const u8*>(behind + 2048 + lane / 4 * 32 + h * 16 + i);
            const u32 both = scale_and_minimum(small[0] | static_cast<u32>(small[8]) << 16, load4(behind + 2304 + lane / 4 * 8 + h * 4));
#pragma unroll
            for (int s = 0; s < 2; s++)
                scaled_codes((s ? w.y : w.x) >> 4 * h & 0x0f0f0f0f, both_low(both), both_high(both), a[s][k], a[s][k + 2]);
        }
    }
};

template <>
struct Unpack<MXFP4> {
    static constexpr int bytes = 2176, codes = 2048, columns = CELL;
    static constexpr float down = 1.0f / 64;
    template <bool PAIRED>
    static PS_DEVICE void step(const TwoHalves& from, const char*, int lane, int i, int, u32 (&a)[2][4]) {
#pragma unroll
        for (int k = 0; k < 2; k++) {
            const char *cell = from.cell[PAIRED ? k : 0], *behind = from.behind(PAIRED ? k : 0);
            const int h = PAIRED ? from.half : k;
            const uint2 w = load8(cell + i / 2 * 512 + lane * 16 + i % 2 * 8);
            const u32 e = *reinterpret_cast<const u8*>(behind + 2048 + lane / 4 * 16 + h * 8 + i);
            const float power = e > 248 ? INFINITY : bits_float((e + 6) << 23);  // 2^(e − 127) · 64
            const u32 scale = to_halves(power, power);
#pragma unroll
            for (int s = 0; s < 2; s++) {
                const u32 codes = (s ? w.y : w.x) >> 16 * h;
                // The upper bytes of 0, ½, 1, 1½, 2, 3, 4, 6 as halfs; then the signs of nibbles 0 … 3.
                const u32 sizes = permute(0x3e3c3800, 0x46444240, codes & 0x7777);
                const u32 upper = sizes ^ (permute(codes << 4, codes, 0x5140) & 0x80808080);
                a[s][k] = mul_halves(permute(upper, 0, 0x1404), scale);
                a[s][k + 2] = mul_halves(permute(upper, 0, 0x3424), scale);
            }
        }
    }
};
