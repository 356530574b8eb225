// NEON, as every 64-bit ARM processor has it, and with products of four bytes (most since 2018).
#pragma once

#include <arm_neon.h>

#include <cstring>

#include "../formats/iq2_xxs_grid.h"

namespace {

#if defined(PENSTOCK_ISA_NEON_DOT)
constexpr const char* ISA_NAME = "neon_dot";
constexpr bool HAS_PLANES = true;
#define PENSTOCK_PLANES
#else
constexpr const char* ISA_NAME = "neon";
constexpr bool HAS_PLANES = false;
#endif
constexpr const StepKernels& ISA_STEPS = baseline_steps;
constexpr int TILE_INPUTS = 2, TILE_WEIGHTS = 2;  // a sum takes four registers
constexpr int FLOAT_TILE_INPUTS = 2, FLOAT_TILE_WEIGHTS = 4;
constexpr i64 FLOAT_DEPTH = 256;  // columns of a panel of floats: 16 KiB
constexpr int FEW_GROUPED = FEW;
constexpr int CHAINS = 1;

// Floats

struct F8 {
    float32x4_t a, b;
};

PS_INLINE F8 splat(float x) { return {vdupq_n_f32(x), vdupq_n_f32(x)}; }
PS_INLINE F8 load(const float* p) { return {vld1q_f32(p), vld1q_f32(p + 4)}; }
PS_INLINE void store(float* p, F8 v) {
    vst1q_f32(p, v.a);
    vst1q_f32(p + 4, v.b);
}
PS_INLINE F8 add(F8 a, F8 b) { return {vaddq_f32(a.a, b.a), vaddq_f32(a.b, b.b)}; }
PS_INLINE F8 mul(F8 a, F8 b) { return {vmulq_f32(a.a, b.a), vmulq_f32(a.b, b.b)}; }
PS_INLINE F8 fma(F8 a, F8 b, F8 c) { return {vfmaq_f32(c.a, a.a, b.a), vfmaq_f32(c.b, a.b, b.b)}; }   // a · b + c
PS_INLINE F8 fnma(F8 a, F8 b, F8 c) { return {vfmsq_f32(c.a, a.a, b.a), vfmsq_f32(c.b, a.b, b.b)}; }  // c − a · b

// ((0+4) + (2+6)) + ((1+5) + (3+7))
PS_INLINE float add_lanes(F8 v) {
    float32x4_t t = vaddq_f32(v.a, v.b);
    float32x2_t u = vadd_f32(vget_low_f32(t), vget_high_f32(t));
    return vget_lane_f32(u, 0) + vget_lane_f32(u, 1);
}

PS_INLINE F8 from_halves(uint16x8_t h) {
    return {vcvt_f32_f16(vreinterpret_f16_u16(vget_low_u16(h))), vcvt_f32_f16(vreinterpret_f16_u16(vget_high_u16(h)))};
}
PS_INLINE uint16x8_t load_u16(const u8* p) { return vreinterpretq_u16_u8(vld1q_u8(p)); }

PS_INLINE F8 splat_f16(const u8* p) {
    std::uint16_t half;
    std::memcpy(&half, p, 2);
    return from_halves(vdupq_n_u16(half));
}
PS_INLINE F8 load_f16(const u8* p) { return from_halves(load_u16(p)); }
PS_INLINE F8 load_bf16(const u8* p) {
    uint16x8_t v = load_u16(p);
    return {vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(v), 16)),
            vreinterpretq_f32_u32(vshll_n_u16(vget_high_u16(v), 16))};
}

// Eight E4M3 numbers, divided by 256: their bits, in the right places, are float16 numbers with another bias.
PS_INLINE F8 load_e4m3(const u8* p) {
    int16x8_t v = vreinterpretq_s16_u16(vshll_n_u8(vld1_u8(p), 8));
    const uint16x8_t most = vdupq_n_u16(0x3f80);
    uint16x8_t half = vandq_u16(vreinterpretq_u16_s16(vshrq_n_s16(v, 1)), vdupq_n_u16(0xbfff));
    uint16x8_t nan = vceqq_u16(vandq_u16(half, most), most);  // 0x7f and 0xff
    return from_halves(vorrq_u16(half, vandq_u16(nan, vdupq_n_u16(0x7fff))));
}

// The eight bytes of `bytes` as floats.
PS_INLINE F8 floats(std::uint64_t bytes) {
    uint16x8_t v = vmovl_u8(vcreate_u8(bytes));
    return {vcvtq_f32_u32(vmovl_u16(vget_low_u16(v))), vcvtq_f32_u32(vmovl_u16(vget_high_u16(v)))};
}

PS_INLINE void prefetch(const void* p) { __builtin_prefetch(p); }

// Bytes

struct B32 {
    uint8x16_t a, b;
};
PS_INLINE B32 load_bytes(const u8* p) { return {vld1q_u8(p), vld1q_u8(p + 16)}; }

// The low nibbles of sixteen bytes, then the high ones.
PS_INLINE B32 nibbles(const u8* p) {
    uint8x16_t v = vld1q_u8(p);
    return {vandq_u8(v, vdupq_n_u8(15)), vshrq_n_u8(v, 4)};
}

// Low and high nibble of each of sixteen bytes in turn.
PS_INLINE B32 nibble_pairs(const u8* p) {
    B32 v = nibbles(p);
    return {vzip1q_u8(v.a, v.b), vzip2q_u8(v.a, v.b)};
}

// table[i] for every byte i < 16.
PS_INLINE B32 look_up(const u8* table, B32 index) {
    uint8x16_t t = vld1q_u8(table);
    return {vqtbl1q_u8(t, index.a), vqtbl1q_u8(t, index.b)};
}

// Groups of 32

struct W32 {
    int16x8_t v[4];
};
using Pair = W32;

PS_INLINE W32 load(const i16* p) { return {{vld1q_s16(p), vld1q_s16(p + 8), vld1q_s16(p + 16), vld1q_s16(p + 24)}}; }
PS_INLINE Pair load_pair(const i16* p) { return load(p); }
// The first sixteen at p, the others at q.
PS_INLINE void store(i16* p, i16* q, W32 w) {
    for (int i = 0; i < 2; i++) {
        vst1q_s16(p + 8 * i, w.v[i]);
        vst1q_s16(q + 8 * i, w.v[2 + i]);
    }
}

// Sixteen columns of one weight row.
constexpr int SIDES = 1;
constexpr i64 STEP = 16;
struct V {
    int16x8_t a, b;
};
using Sides = F8;

PS_INLINE V load_weights(const i16* p) { return {vld1q_s16(p), vld1q_s16(p + 8)}; }
PS_INLINE V load_input(const i16* p) { return load_weights(p); }
PS_INLINE Sides splat_sides(float x) { return splat(x); }
PS_INLINE Sides load_sides(const float* p) { return load(p); }
PS_INLINE Sides load_each(const float* p) { return load(p); }
PS_INLINE void store_sides(float* p, Sides v) { store(p, v); }

// Of every sixteen: elements 0–3, 4–7, 8–11 and 12–15.  Neighbours are added in the end.
struct Sum {
    int32x4_t s[4];
};
PS_INLINE Sum no_sum() { return {{vdupq_n_s32(0), vdupq_n_s32(0), vdupq_n_s32(0), vdupq_n_s32(0)}}; }
PS_INLINE Sum add_dot(Sum sum, V w, V x) {
    return {{vmlal_s16(sum.s[0], vget_low_s16(w.a), vget_low_s16(x.a)), vmlal_high_s16(sum.s[1], w.a, x.a),
             vmlal_s16(sum.s[2], vget_low_s16(w.b), vget_low_s16(x.b)), vmlal_high_s16(sum.s[3], w.b, x.b)}};
}
PS_INLINE Sum add_dot(Sum sum, W32 w, W32 x) {
    return add_dot(add_dot(sum, V{w.v[0], w.v[1]}, V{x.v[0], x.v[1]}), V{w.v[2], w.v[3]}, V{x.v[2], x.v[3]});
}
PS_INLINE Sum add(Sum a, Sum b) {
    return {{vaddq_s32(a.s[0], b.s[0]), vaddq_s32(a.s[1], b.s[1]), vaddq_s32(a.s[2], b.s[2]),
             vaddq_s32(a.s[3], b.s[3])}};
}
PS_INLINE F8 floats(Sum sum) {
    return {vcvtq_f32_s32(vpaddq_s32(sum.s[0], sum.s[1])), vcvtq_f32_s32(vpaddq_s32(sum.s[2], sum.s[3]))};
}
using SideSum = Sum;
PS_INLINE SideSum no_side_sum() { return no_sum(); }
PS_INLINE SideSum dot(V w, V x) { return add_dot(no_sum(), w, x); }
PS_INLINE Sides side_floats(SideSum sum) { return floats(sum); }

PS_INLINE F8 dot_floats(Pair w, Pair x) { return floats(add_dot(no_sum(), w, x)); }

// Signed bytes.
PS_INLINE Pair widen(const u8* p) {
    int8x16_t a = vreinterpretq_s8_u8(vld1q_u8(p)), b = vreinterpretq_s8_u8(vld1q_u8(p + 16));
    return {{vmovl_s8(vget_low_s8(a)), vmovl_high_s8(a), vmovl_s8(vget_low_s8(b)), vmovl_high_s8(b)}};
}

// 256 times the signed bytes, in split order.
PS_INLINE Pair times_256(B32 v) {
    int16x8_t a = vreinterpretq_s16_u8(v.a), b = vreinterpretq_s16_u8(v.b);
    const int16x8_t upper = vdupq_n_s16(static_cast<short>(0xff00));
    return {{vshlq_n_s16(a, 8), vshlq_n_s16(b, 8), vandq_s16(a, upper), vandq_s16(b, upper)}};
}

// (byte >> SHIFT) & MASK in split order.
template <int SHIFT, int MASK>
PS_INLINE W32 fields(B32 v) {
    auto field = [](uint8x16_t bytes, int shift) {
        uint16x8_t shifted = vshlq_u16(vreinterpretq_u16_u8(bytes), vdupq_n_s16(static_cast<short>(-shift)));
        return vreinterpretq_s16_u16(vandq_u16(shifted, vdupq_n_u16(MASK)));
    };
    return {{field(v.a, SHIFT), field(v.b, SHIFT), field(v.a, 8 + SHIFT), field(v.b, 8 + SHIFT)}};
}

// Scales of eight groups.
struct GroupScales {
    i16 scale[8];
};
PS_INLINE GroupScales group_scales(std::uint64_t bytes) {
    GroupScales out;
    vst1q_s16(out.scale, vreinterpretq_s16_u16(vmovl_u8(vcreate_u8(bytes))));
    return out;
}
PS_INLINE W32 scaled(W32 w, const GroupScales& scales, int group) {
    for (int16x8_t& v : w.v) v = vmulq_n_s16(v, scales.scale[group]);
    return w;
}

// Scales of sixteen half groups: the low nibbles of sixteen bytes.
struct HalfScales {
    i16 scale[16];
};
PS_INLINE HalfScales half_scales(const u8* p) {
    uint8x16_t low = vandq_u8(vld1q_u8(p), vdupq_n_u8(15));
    HalfScales out;
    vst1q_s16(out.scale, vreinterpretq_s16_u16(vmovl_u8(vget_low_u8(low))));
    vst1q_s16(out.scale + 8, vreinterpretq_s16_u16(vmovl_high_u8(low)));
    return out;
}
PS_INLINE W32 scaled(W32 w, const HalfScales& scales, int group) {
    for (int i = 0; i < 4; i++) w.v[i] = vmulq_n_s16(w.v[i], scales.scale[2 * group + i % 2]);
    return w;
}

// IQ2_XXS: signs come from a table, as ±1.
struct Signs {};
PS_INLINE Signs signs(const u8*) { return {}; }
// The vectors of a group (four indices, then a word with four times seven sign bits and the scale), signed and scaled.
template <int G>
PS_INLINE W32 grid_weights(const u8* group, const Signs&) {
    std::uint32_t word;
    std::memcpy(&word, group + 4, 4);
    const auto scale = static_cast<short>(2 * (word >> 28) + 1);
    int64x2_t v[4];
    for (int k = 0; k < 4; k++) {
        int16x8_t size = vld1q_s16(iq2_xxs::SPLIT_GRID.data() + 8 * group[k]);
        int16x8_t sign = vld1q_s16(iq2_xxs::SPLIT_SIGNS.data() + 8 * (word >> 7 * k & 127));
        v[k] = vreinterpretq_s64_s16(vmulq_n_s16(vmulq_s16(size, sign), scale));
    }
    auto numbers = [](int64x2_t halves) { return vreinterpretq_s16_s64(halves); };
    return {{numbers(vzip1q_s64(v[0], v[1])), numbers(vzip1q_s64(v[2], v[3])), numbers(vzip2q_s64(v[0], v[1])),
             numbers(vzip2q_s64(v[2], v[3]))}};
}

#if defined(PENSTOCK_PLANES)
// Few inputs in PLANES: 64 weights (two groups) at a time, as bytes.

struct Bytes {
    int8x16_t v[4];
};
// Lanes 0–3 and 4–7 of the first group, then of the second.
struct ByteSum {
    int32x4_t s[4];
};

PS_INLINE Bytes load_unit(const void* p) {
    const auto* bytes = static_cast<const std::int8_t*>(p);
    return {{vld1q_s8(bytes), vld1q_s8(bytes + 16), vld1q_s8(bytes + 32), vld1q_s8(bytes + 48)}};
}
PS_INLINE ByteSum no_byte_sum() { return {{vdupq_n_s32(0), vdupq_n_s32(0), vdupq_n_s32(0), vdupq_n_s32(0)}}; }
PS_INLINE ByteSum add_bytes(ByteSum sum, Bytes w, Bytes x) {
    for (int i = 0; i < 4; i++) sum.s[i] = vdotq_s32(sum.s[i], w.v[i], x.v[i]);
    return sum;
}
// 255 · high + low
PS_INLINE F8 join_digits(ByteSum high, ByteSum low) {
    auto lanes = [&](int i) {
        const int32x4_t h = vaddq_s32(high.s[i], high.s[2 + i]), l = vaddq_s32(low.s[i], low.s[2 + i]);
        return vcvtq_f32_s32(vmlaq_n_s32(l, h, 255));
    };
    return {lanes(0), lanes(1)};
}

struct UnitScales {
    std::int32_t first, second;
};
PS_INLINE ByteSum add_scaled_sum(ByteSum sum, ByteSum unit, UnitScales scales) {
    for (int i = 0; i < 4; i++) sum.s[i] = vmlaq_n_s32(sum.s[i], unit.s[i], i < 2 ? scales.first : scales.second);
    return sum;
}

// Scales of the sixteen half groups of Q2_K, to be multiplied into its weights.
PS_INLINE uint8x16_t two_bit_products(const u8* scales) { return vandq_u8(vld1q_u8(scales), vdupq_n_u8(15)); }
template <int I>
PS_INLINE Bytes look_up_products(const u8* weights, uint8x16_t scales) {
    const u8* own = weights + I / 2 * 32;
    auto part = [&](int half, int shift, uint8x16_t scale) {
        const uint8x16_t w = vshlq_u8(vld1q_u8(own + 16 * half), vdupq_n_s8(static_cast<std::int8_t>(-shift)));
        return vreinterpretq_s8_u8(vmulq_u8(vandq_u8(w, vdupq_n_u8(3)), scale));
    };
    constexpr int SHIFT = I % 2 * 4;
    return {{part(0, SHIFT, vdupq_laneq_u8(scales, 4 * I)), part(1, SHIFT, vdupq_laneq_u8(scales, 4 * I + 1)),
             part(0, SHIFT + 2, vdupq_laneq_u8(scales, 4 * I + 2)),
             part(1, SHIFT + 2, vdupq_laneq_u8(scales, 4 * I + 3))}};
}

// The low nibbles of 32 bytes, then the high ones.
PS_INLINE Bytes nibbles64(const u8* p) {
    const B32 first = nibbles(p), second = nibbles(p + 16);
    auto bytes = [](uint8x16_t v) { return vreinterpretq_s8_u8(v); };
    return {{bytes(first.a), bytes(second.a), bytes(first.b), bytes(second.b)}};
}

struct LaneScales {
    u8 scale[8];
};
PS_INLINE LaneScales lane_scales(std::uint64_t bytes) {
    LaneScales out;
    std::memcpy(out.scale, &bytes, 8);
    return out;
}
template <int I>
PS_INLINE UnitScales unit_scales(const LaneScales& scales) {
    return {scales.scale[2 * I], scales.scale[2 * I + 1]};
}

// IQ2_XXS: weights with their signs, inputs as they are, and scales.
PS_INLINE std::uint32_t sign_word(const u8* group) {
    std::uint32_t word;
    std::memcpy(&word, group + 4, 4);
    return word;
}
template <int I>
PS_INLINE Bytes grid_bytes(const u8* groups, const Signs&) {
    auto vector = [](const u8* group, int k) {
        const int8x8_t size = vreinterpret_s8_u8(vld1_u8(iq2_xxs::GRID.data() + 8 * group[k]));
        return vmul_s8(size, vld1_s8(iq2_xxs::SIGNS.data() + 8 * (sign_word(group) >> 7 * k & 127)));
    };
    auto pair = [&](const u8* group, int k) { return vcombine_s8(vector(group, k), vector(group, k + 1)); };
    const u8 *first = groups + 16 * I, *second = first + 8;
    return {{pair(first, 0), pair(first, 2), pair(second, 0), pair(second, 2)}};
}
template <int I>
PS_INLINE Bytes signed_inputs(Bytes x, const Signs&) {
    return x;
}
template <int I>
PS_INLINE UnitScales grid_scales(const u8* groups, const Signs&) {
    auto scale = [](const u8* group) { return static_cast<std::int32_t>(2 * (sign_word(group) >> 28) + 1); };
    return {scale(groups + 16 * I), scale(groups + 16 * I + 8)};
}
#endif

}  // namespace
