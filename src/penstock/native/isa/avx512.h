// AVX-512 (F, BW, DQ, VL) with VNNI, as Cascade Lake brought it: integers in vectors of 512 bits, floats as on AVX2.
// Ice Lake and Zen 4 added VBMI and GFNI, which take fewer instructions to place bytes and bits.
#pragma once

#include "../formats/iq2_xxs_grid.h"
#include "x86.h"

namespace {

#if defined(PENSTOCK_ISA_AVX512)
constexpr const char* ISA_NAME = "avx512";
#else
constexpr const char* ISA_NAME = "avx512_vnni";
#endif
constexpr const StepKernels& ISA_STEPS = avx512_steps;
constexpr int TILE_INPUTS = 4, TILE_WEIGHTS = 2;
constexpr int FLOAT_TILE_INPUTS = 4, FLOAT_TILE_WEIGHTS = 4;
constexpr i64 FLOAT_DEPTH = 512;  // columns of a panel of floats: 32 KiB, as large as the first-level cache allows
constexpr int FEW_GROUPED = 8;  // inputs that formats with a scale per group, and floats, use at once
constexpr int CHAINS = 4;  // sums that take turns, where one would have to wait for itself

using W32 = __m512i;
using Sum = __m512i;  // lanes i and i + 8 belong together

PS_INLINE W32 load(const i16* p) { return _mm512_loadu_si512(p); }
// The first sixteen at p, the others at q.
PS_INLINE void store(i16* p, i16* q, W32 w) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_castsi512_si256(w));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(q), _mm512_extracti64x4_epi64(w, 1));
}

PS_INLINE Sum no_sum() { return _mm512_setzero_si512(); }
PS_INLINE Sum add_dot(Sum sum, W32 w, W32 x) { return _mm512_dpwssd_epi32(sum, w, x); }
PS_INLINE F8 floats(Sum sum) {
    return _mm256_cvtepi32_ps(_mm256_add_epi32(_mm512_castsi512_si256(sum), _mm512_extracti64x4_epi64(sum, 1)));
}
PS_INLINE Sum add(Sum a, Sum b) { return _mm512_add_epi32(a, b); }

// Two weight rows side by side, sixteen columns of each; also pairs of rows for few inputs.
#define PENSTOCK_PAIRS
constexpr int SIDES = 2;
constexpr i64 STEP = 16;
using V = __m512i;
using SideSum = __m512i;
using Sides = __m512;

PS_INLINE V load_weights(const i16* p) { return _mm512_loadu_si512(p); }
PS_INLINE V load_input(const i16* p) { return _mm512_broadcast_i64x4(load256(p)); }
PS_INLINE SideSum no_side_sum() { return _mm512_setzero_si512(); }
PS_INLINE SideSum dot(V w, V x) { return _mm512_madd_epi16(w, x); }
PS_INLINE Sides side_floats(SideSum sum) { return _mm512_cvtepi32_ps(sum); }
PS_INLINE Sides splat_sides(float x) { return _mm512_set1_ps(x); }
PS_INLINE Sides load_sides(const float* p) { return _mm512_loadu_ps(p); }
PS_INLINE Sides load_each(const float* p) { return _mm512_broadcast_f32x8(load(p)); }
PS_INLINE void store_sides(float* p, Sides v) { _mm512_storeu_ps(p, v); }
PS_INLINE float add_lanes(Sides v, int side) {
    return add_lanes(side ? _mm512_extractf32x8_ps(v, 1) : _mm512_castps512_ps256(v));
}
// The sums of lanes of four rows, in the order of add_lanes.
PS_INLINE void store_four(float* out, Sides first, Sides second) {
    const Sides halves = _mm512_add_ps(_mm512_shuffle_f32x4(first, second, 0x88), _mm512_shuffle_f32x4(first, second, 0xdd));
    const Sides quarters = _mm512_add_ps(halves, _mm512_shuffle_ps(halves, halves, 0xee));
    const Sides sums = _mm512_add_ps(quarters, _mm512_movehdup_ps(quarters));
    const __m512i order = _mm512_castsi128_si512(_mm_setr_epi32(0, 4, 8, 12));
    _mm_storeu_ps(out, _mm512_castps512_ps128(_mm512_permutexvar_ps(order, sums)));
}
// Signed bytes of two rows, and their float16 scales.
PS_INLINE V widen(const u8* p, const u8* q) { return _mm512_cvtepi8_epi16(join(load128(p), load128(q))); }
PS_INLINE Sides splat_f16(const u8* p, const u8* q) {
    std::uint16_t first, second;
    std::memcpy(&first, p, 2);
    std::memcpy(&second, q, 2);
    return _mm512_cvtph_ps(join(_mm_set1_epi16(static_cast<short>(first)), _mm_set1_epi16(static_cast<short>(second))));
}
PS_INLINE Sides join(F8 first, F8 second) { return _mm512_insertf32x8(_mm512_castps256_ps512(first), second, 1); }
// Of two rows: the low nibbles of sixteen bytes, then the high ones; low and high nibble of each in turn; table[i] for
// every byte i < 16; and 256 times the even or odd signed bytes.
PS_INLINE V twice_each(const u8* p, const u8* q) {
    return _mm512_inserti64x4(_mm512_castsi256_si512(_mm256_broadcastsi128_si256(load128(p))),
                              _mm256_broadcastsi128_si256(load128(q)), 1);
}
PS_INLINE V nibbles(const u8* p, const u8* q) {
    const __m512i shifts = _mm512_set_epi64(4, 4, 0, 0, 4, 4, 0, 0);
    return _mm512_and_si512(_mm512_srlv_epi64(twice_each(p, q), shifts), _mm512_set1_epi8(15));
}
PS_INLINE V nibble_pairs(const u8* p, const u8* q) {
    const __m512i v = twice_each(p, q), h = _mm512_srli_epi16(v, 4);
    const __m512i both = _mm512_mask_unpackhi_epi8(_mm512_unpacklo_epi8(v, h), 0xffff0000ffff0000, v, h);
    return _mm512_and_si512(both, _mm512_set1_epi8(15));
}
PS_INLINE V look_up(const u8* table, V index) {
    return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(load128(table)), index);
}
template <int H>
PS_INLINE V half_times_256(V v) {
    return H ? _mm512_and_si512(v, _mm512_set1_epi16(static_cast<short>(0xff00))) : _mm512_slli_epi16(v, 8);
}
PS_INLINE SideSum add_dot_sides(SideSum sum, V w, V x) { return _mm512_dpwssd_epi32(sum, w, x); }
PS_INLINE Sides mul(Sides a, Sides b) { return _mm512_mul_ps(a, b); }
PS_INLINE Sides fma(Sides a, Sides b, Sides c) { return _mm512_fmadd_ps(a, b, c); }
PS_INLINE Sides fnma(Sides a, Sides b, Sides c) { return _mm512_fnmadd_ps(a, b, c); }

// One group alone: two short vectors need no folding.
PS_INLINE F8 dot_floats(Pair w, Pair x) {
    return _mm256_cvtepi32_ps(_mm256_dpwssd_epi32(_mm256_madd_epi16(w.a, x.a), w.b, x.b));
}

// Twice the same 32 bytes, to take the even ones from the first and the odd ones from the second.
PS_INLINE W32 twice(B32 v) { return _mm512_broadcast_i64x4(v); }
PS_INLINE W32 even_odd(short even, short odd) {
    return _mm512_inserti64x4(_mm512_set1_epi16(even), _mm256_set1_epi16(odd), 1);
}

// (byte >> SHIFT) & MASK in split order.
template <int SHIFT, int MASK>
PS_INLINE W32 fields(B32 v) {
    return _mm512_and_si512(_mm512_srlv_epi16(twice(v), even_odd(SHIFT, 8 + SHIFT)), _mm512_set1_epi16(MASK));
}

// Scales of eight groups.
struct GroupScales {
    __m128i words;
};
PS_INLINE GroupScales group_scales(std::uint64_t bytes) {
    return {_mm_cvtepu8_epi16(_mm_cvtsi64_si128(static_cast<long long>(bytes)))};
}
PS_INLINE W32 scaled(W32 w, const GroupScales& scales, int group) {
    W32 s = _mm512_permutexvar_epi16(_mm512_set1_epi16(static_cast<short>(group)),
                                     _mm512_castsi128_si512(scales.words));
    return _mm512_mullo_epi16(w, s);
}

// Scales of sixteen half groups: the low nibbles of sixteen bytes.  In split order a half group is eight lanes of each
// half of the vector.
struct HalfScales {
    __m512i bytes;
};
PS_INLINE HalfScales half_scales(const u8* p) {
    return {_mm512_and_si512(_mm512_broadcast_i32x4(load128(p)), _mm512_set1_epi8(15))};
}
PS_INLINE W32 scaled(W32 w, const HalfScales& scales, int group) {
    // Byte 2 · group to all lanes of one quarter, the one behind it to the next; 0x80 clears the upper bytes.
    const __m256i half = join(_mm_set1_epi16(static_cast<short>(0x8000 + 2 * group)),
                              _mm_set1_epi16(static_cast<short>(0x8001 + 2 * group)));
    return _mm512_mullo_epi16(w, _mm512_shuffle_epi8(scales.bytes, twice(half)));
}

// IQ2_XXS.
#if defined(PENSTOCK_ISA_AVX512)
// Of a block: signs, a bit for every weight, 64 weights each; 2 · scale + 1 by group, in every other word; the codes of
// its 32 vectors.
struct Signs {
    alignas(32) std::uint64_t minus[4];
    __m512i scales, codes;
};
PS_INLINE __m512i vector_codes(__m512i numbers) {
    auto of = [&](int k) {  // 64 of all 256
        return _mm512_permutex2var_epi16(_mm512_load_si512(iq2_xxs::PACKED.data() + 64 * k), numbers,
                                         _mm512_load_si512(iq2_xxs::PACKED.data() + 64 * k + 32));
    };
    const __mmask32 odd = _mm512_test_epi16_mask(numbers, _mm512_set1_epi16(64));
    const __mmask32 upper = _mm512_test_epi16_mask(numbers, _mm512_set1_epi16(128));
    return _mm512_mask_blend_epi16(upper, _mm512_mask_blend_epi16(odd, of(0), of(1)),
                                   _mm512_mask_blend_epi16(odd, of(2), of(3)));
}
PS_INLINE Signs signs(const u8* groups) {
    const __m512i words = _mm512_loadu_si512(groups);
    // Seven bits each into a byte of their own; its eighth bit becomes the parity of the others.
    const __m512i fields = _mm512_multishift_epi64_epi8(_mm512_set1_epi64(0x352e2720), words);
    const __m512i bytes = _mm512_gf2p8affine_epi64_epi8(fields, _mm512_set1_epi64(0x010204081020407f), 0);
    const __m512i scales = _mm512_srli_epi64(words, 60);
    Signs out;
    _mm256_store_si256(reinterpret_cast<__m256i*>(out.minus), _mm512_cvtepi64_epi32(bytes));
    out.scales = _mm512_add_epi64(_mm512_add_epi64(scales, scales), _mm512_set1_epi64(1));
    out.codes = vector_codes(_mm512_cvtepu8_epi16(_mm512_cvtepi64_epi32(words)));
    return out;
}
// The eight vectors of unit I, without their signs: a code for every eight bytes, two bits of it for each, and what they
// stand for, which is an exclusive or of 8, 8 ^ 25 and 8 ^ 43.
template <int I>
PS_INLINE __m512i grid_unit(const Signs& s) {
    const __m512i own = _mm512_add_epi16(_mm512_set_epi64(7, 6, 5, 4, 3, 2, 1, 0), _mm512_set1_epi64(8 * I));
    const __m512i fields = _mm512_multishift_epi64_epi8(_mm512_set1_epi64(0x0e0c0a0806040200),
                                                        _mm512_permutexvar_epi16(own, s.codes));
    return _mm512_gf2p8affine_epi64_epi8(fields, _mm512_set1_epi64(0x0302000001020000), 8);
}
// A unit's two groups in split order, signed and scaled: the even weights of both, and the odd ones.
#define PENSTOCK_GRID_UNITS
struct Halves {
    __m512i even, odd;
};
template <int I>
PS_INLINE Halves grid_halves(const Signs& s) {
    const __m512i size = grid_unit<I>(s);
    const __m512i bytes = _mm512_mask_sub_epi8(size, s.minus[I], _mm512_setzero_si512(), size);
    const __m512i scale = _mm512_permutexvar_epi16(  // 256 times as large, as weights are: the upper halves are products
        _mm512_inserti64x4(_mm512_set1_epi16(8 * I), _mm256_set1_epi16(8 * I + 4), 1), _mm512_slli_epi16(s.scales, 8));
    return {_mm512_mulhi_epi16(_mm512_slli_epi16(bytes, 8), scale),
            _mm512_mulhi_epi16(_mm512_and_si512(bytes, _mm512_set1_epi16(static_cast<short>(0xff00))), scale)};
}
template <int G>
PS_INLINE W32 grid_weights(const u8*, const Signs& s) {
    const Halves unit = grid_halves<G / 2>(s);
    return _mm512_shuffle_i64x2(unit.even, unit.odd, G % 2 ? 0xee : 0x44);
}
#else
struct Signs {
    alignas(32) std::uint64_t minus[4];  // two groups each, a bit for every weight
    __m512i scales;                      // by group: 2 · scale + 1, in every other word
};
PS_INLINE Signs signs(const u8* groups) {
    __m256i scales;
    Signs out;
    _mm256_store_si256(reinterpret_cast<__m256i*>(out.minus), sign_words(groups, scales));
    out.scales = _mm512_cvtepu32_epi64(scales);
    return out;
}
// Two vectors side by side.  The barrier makes the compiler use up the indices before it loads more of them than there
// are registers.
PS_INLINE __m128i grid_pair(const u8* index) {
    auto vector = [&](int k) { return iq2_xxs::GRID.data() + 8 * static_cast<std::size_t>(index[k]); };
    const __m128i first = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(vector(0)));
    __m128i both = _mm_castps_si128(
        _mm_loadh_pi(_mm_castsi128_ps(first), reinterpret_cast<const __m64*>(vector(1))));
    asm("" : "+v"(both));
    return both;
}
PS_INLINE __m256i grid_group(const u8* index) { return join(grid_pair(index), grid_pair(index + 2)); }
// The vectors of a group (four indices first), signed and scaled.
template <int G>
PS_INLINE W32 grid_weights(const u8* group, const Signs& s) {
    const __m256i size = grid_group(group);
    const auto minus = static_cast<__mmask32>(s.minus[G / 2] >> (G % 2 * 32));
    const W32 bytes = twice(_mm256_mask_sub_epi8(size, minus, _mm256_setzero_si256(), size));
    const W32 wide = _mm512_srai_epi16(_mm512_sllv_epi16(bytes, even_odd(8, 0)), 8);
    const W32 scale = _mm512_permutexvar_epi16(_mm512_set1_epi16(4 * G), s.scales);
    return _mm512_mullo_epi16(wide, scale);
}
#endif

// Few inputs in PLANES: 64 weights at a time, as bytes.
#define PENSTOCK_PLANES
constexpr bool HAS_PLANES = true;
using Bytes = __m512i;
using ByteSum = __m512i;

PS_INLINE Bytes load_unit(const void* p) { return _mm512_loadu_si512(p); }
PS_INLINE ByteSum no_byte_sum() { return _mm512_setzero_si512(); }
// Four products of an unsigned and a signed byte more in every lane.
PS_INLINE ByteSum add_bytes(ByteSum sum, Bytes w, Bytes x) { return _mm512_dpbusd_epi32(sum, w, x); }
// 255 · high + low
PS_INLINE F8 join_digits(ByteSum high, ByteSum low) {
    return floats(_mm512_add_epi32(_mm512_sub_epi32(_mm512_slli_epi32(high, 8), high), low));
}
// The sums of single units fit 16 bits, and are multiplied as such.  scales: in the lower half of every lane.
PS_INLINE ByteSum add_scaled_sum(ByteSum sum, ByteSum unit, __m512i scales) {
    return _mm512_dpwssd_epi32(sum, unit, scales);
}
// Of two groups in a row, each for its eight lanes.
template <int FIRST, int SECOND>
PS_INLINE __m512i pick_scales(__m512i scales) {
    return _mm512_permutexvar_epi32(_mm512_inserti64x4(_mm512_set1_epi32(FIRST), _mm256_set1_epi32(SECOND), 1), scales);
}

// Two-bit weights times their scales, by look-up.  A unit has four half groups, one in each quarter of a vector: the four
// products of half group 4 · I + k are at 4 · I in quarter k.
PS_INLINE Bytes two_bit_products(const u8* scales) {
    auto quarter = [](int k) {  // scales k, 4 + k, 8 + k and 12 + k, each in a lane of its own; 0x80 clears a byte
        return _mm_add_epi32(_mm_setr_epi32(0, 4, 8, 12), _mm_set1_epi32(static_cast<int>(0x80808000u) + k));
    };
    const __m512i lanes = _mm512_inserti64x4(_mm512_castsi256_si512(join(quarter(0), quarter(1))),
                                             join(quarter(2), quarter(3)), 1);
    const __m512i low = _mm512_and_si512(_mm512_broadcast_i32x4(load128(scales)), _mm512_set1_epi8(15));
    return _mm512_mullo_epi32(_mm512_shuffle_epi8(low, lanes), _mm512_set1_epi32(0x03020100));  // below 46: none spills
}
// The weights of unit I.  A byte has one weight for each of four groups; two groups are taken at once.
template <int I>
PS_INLINE Bytes look_up_products(const u8* weights, Bytes products) {
    const __m512i both = _mm512_broadcast_i64x4(load256(weights + I / 2 * 32));
    const __m512i turn = _mm512_inserti64x4(_mm512_set1_epi32(I % 2 ? 28 : 0), _mm256_set1_epi32(I % 2 ? 26 : 30), 1);
    const __m512i index = _mm512_ternarylogic_epi32(_mm512_rolv_epi32(both, turn), _mm512_set1_epi8(3),
                                                    _mm512_set1_epi8(4 * I), 0xea);
    return _mm512_shuffle_epi8(products, index);
}

// The low nibbles of 32 bytes, then the high ones.
PS_INLINE Bytes nibbles64(const u8* p) {
    return _mm512_and_si512(_mm512_srlv_epi16(twice(load256(p)), even_odd(0, 4)), _mm512_set1_epi8(15));
}
// Eight scales, each in a lane of its own; and those of unit I.
using LaneScales = __m512i;
PS_INLINE LaneScales lane_scales(std::uint64_t bytes) {
    return _mm512_castsi256_si512(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128(static_cast<long long>(bytes))));
}
template <int I>
PS_INLINE __m512i unit_scales(LaneScales scales) {
    return pick_scales<2 * I, 2 * I + 1>(scales);
}

// IQ2_XXS: weights without their signs, inputs that have taken them over, and scales.
#if defined(PENSTOCK_ISA_AVX512)
template <int I>
PS_INLINE Bytes grid_bytes(const u8*, const Signs& s) {
    return grid_unit<I>(s);
}
#else
template <int I>
PS_INLINE Bytes grid_bytes(const u8* groups, const Signs&) {
    const u8* own = groups + 16 * I;
    return _mm512_inserti64x4(_mm512_castsi256_si512(grid_group(own)), grid_group(own + 8), 1);
}
#endif
template <int I>
PS_INLINE Bytes signed_inputs(Bytes x, const Signs& s) {
    return _mm512_mask_sub_epi8(x, s.minus[I], _mm512_setzero_si512(), x);
}
template <int I>
PS_INLINE __m512i grid_scales(const u8*, const Signs& s) {
    return pick_scales<4 * I, 4 * I + 2>(s.scales);
}

}  // namespace
