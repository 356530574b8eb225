// AVX2 with FMA and F16C.
#pragma once

#include "../formats/iq2_xxs_grid.h"
#include "x86.h"

namespace {

constexpr const char* ISA_NAME = "avx2";
constexpr const StepKernels& ISA_STEPS = avx2_steps;
constexpr int TILE_INPUTS = 4, TILE_WEIGHTS = 2;  // sums of a tile and what they are made of fit sixteen registers
constexpr int FLOAT_TILE_INPUTS = 3, FLOAT_TILE_WEIGHTS = 4;
constexpr i64 FLOAT_DEPTH = 256;  // columns of a panel of floats: 16 KiB

constexpr bool HAS_PLANES = false;
constexpr int FEW_GROUPED = FEW;
constexpr int CHAINS = 1;                         // sums that take turns, where one would have to wait for itself

using W32 = Pair;
using Sum = __m256i;

PS_INLINE W32 load(const i16* p) { return load_pair(p); }

PS_INLINE Sum no_sum() { return _mm256_setzero_si256(); }
PS_INLINE Sum dot(W32 w, W32 x) { return _mm256_add_epi32(_mm256_madd_epi16(w.a, x.a), _mm256_madd_epi16(w.b, x.b)); }
PS_INLINE Sum add_dot(Sum sum, W32 w, W32 x) { return _mm256_add_epi32(sum, dot(w, x)); }
PS_INLINE F8 floats(Sum sum) { return _mm256_cvtepi32_ps(sum); }
PS_INLINE F8 dot_floats(Pair w, Pair x) { return floats(dot(w, x)); }
PS_INLINE Sum add(Sum a, Sum b) { return _mm256_add_epi32(a, b); }

// Sixteen columns of one weight row.
constexpr int SIDES = 1;
constexpr i64 STEP = 16;
using V = __m256i;
using SideSum = __m256i;
using Sides = F8;

PS_INLINE V load_weights(const i16* p) {
    V v = load256(p);
    asm("" : "+x"(v));  // into a register: the compiler would rather load it again for each use
    return v;
}
PS_INLINE V load_input(const i16* p) { return load_weights(p); }
PS_INLINE SideSum no_side_sum() { return _mm256_setzero_si256(); }
PS_INLINE SideSum dot(V w, V x) { return _mm256_madd_epi16(w, x); }
PS_INLINE SideSum add_dot(SideSum sum, V w, V x) { return _mm256_add_epi32(sum, _mm256_madd_epi16(w, x)); }
PS_INLINE Sides side_floats(SideSum sum) { return _mm256_cvtepi32_ps(sum); }
PS_INLINE Sides splat_sides(float x) { return splat(x); }
PS_INLINE Sides load_sides(const float* p) { return load(p); }
PS_INLINE Sides load_each(const float* p) { return load(p); }
PS_INLINE void store_sides(float* p, Sides v) { store(p, v); }

// (byte >> SHIFT) & MASK in split order.
template <int SHIFT, int MASK>
PS_INLINE W32 fields(B32 v) {
    const __m256i mask = _mm256_set1_epi16(MASK);
    __m256i low = SHIFT ? _mm256_srli_epi16(v, SHIFT) : v, high = _mm256_srli_epi16(v, 8 + SHIFT);
    return {_mm256_and_si256(low, mask), (MASK << SHIFT) > 127 ? high : _mm256_and_si256(high, mask)};
}

// Scales of eight groups: one per word, in both halves of it.
struct GroupScales {
    __m256i twice;
};
PS_INLINE __m256i everywhere(__m256i words, int number) {
    return _mm256_permutevar8x32_epi32(words, _mm256_set1_epi32(number));
}
PS_INLINE GroupScales group_scales(std::uint64_t bytes) {
    __m256i wide = _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(static_cast<long long>(bytes)));
    return {_mm256_or_si256(wide, _mm256_slli_epi32(wide, 16))};
}
PS_INLINE W32 scaled(W32 w, const GroupScales& scales, int group) {
    __m256i s = everywhere(scales.twice, group);
    return {_mm256_mullo_epi16(w.a, s), _mm256_mullo_epi16(w.b, s)};
}

// Scales of sixteen half groups: the low nibbles of sixteen bytes.  In split order a half group is eight lanes of each
// vector of sixteen.
struct HalfScales {
    __m256i bytes;
};
PS_INLINE HalfScales half_scales(const u8* p) {
    return {_mm256_and_si256(_mm256_broadcastsi128_si256(load128(p)), _mm256_set1_epi8(15))};
}
PS_INLINE W32 scaled(W32 w, const HalfScales& scales, int group) {
    // Byte 2 · group to all lanes of the lower half, the one behind it to the upper; 0x80 clears the upper bytes.
    const __m256i pick = _mm256_add_epi8(
        join(_mm_set1_epi16(static_cast<short>(0x8000)), _mm_set1_epi16(static_cast<short>(0x8001))),
        _mm256_set1_epi16(static_cast<short>(2 * group)));
    __m256i s = _mm256_shuffle_epi8(scales.bytes, pick);
    return {_mm256_mullo_epi16(w.a, s), _mm256_mullo_epi16(w.b, s)};
}

// IQ2_XXS.  A lane has the signs of its vector in its upper byte, of which it tests one bit: (threshold − bit) is negative
// where it is set and positive where not, if the threshold is half the bit.
struct Signs {
    __m256i words;  // by group: the signs of four vectors
    GroupScales scales;
};
PS_INLINE Signs signs(const u8* groups) {
    __m256i scales, words = sign_words(groups, scales);
    return {words, {_mm256_or_si256(scales, _mm256_slli_epi32(scales, 16))}};
}
PS_INLINE __m256i with_signs(__m256i size, __m256i signs, __m256i bit) {
    const __m256i threshold = _mm256_srli_epi16(bit, 1);
    return _mm256_sign_epi16(size, _mm256_sub_epi16(threshold, _mm256_and_si256(signs, bit)));
}
// The vectors of a group (four indices first), signed and scaled.
template <int G>
PS_INLINE W32 grid_weights(const u8* group, const Signs& s) {
    auto vector = [&](int k) { return load128(iq2_xxs::SPLIT_GRID.data() + 8 * static_cast<std::size_t>(group[k])); };
    const __m256i a = join(vector(0), vector(2)), b = join(vector(1), vector(3));
    auto upper = [](short low, short high) {
        return _mm_unpacklo_epi64(_mm_set1_epi16(static_cast<short>(low << 8 | 0x80)),
                                  _mm_set1_epi16(static_cast<short>(high << 8 | 0x80)));
    };
    const __m256i own = _mm256_shuffle_epi8(everywhere(s.words, G), join(upper(0, 1), upper(2, 3)));
    const __m256i even = _mm256_set1_epi64x(0x4000100004000100), odd = _mm256_slli_epi16(even, 1);
    return scaled(W32{with_signs(_mm256_unpacklo_epi64(a, b), own, even),
                      with_signs(_mm256_unpackhi_epi64(a, b), own, odd)},
                  s.scales, G);
}

}  // namespace
