// AVX-512 (F, BW, DQ, VL) with VNNI: integers in vectors of 512 bits, floats as on AVX2.
#pragma once

#include "../formats/iq2_xxs_grid.h"
#include "x86.h"

namespace {

constexpr const char* ISA_NAME = "avx512";
constexpr int TILE_INPUTS = 4, TILE_WEIGHTS = 2;
constexpr int CHAINS = 4;  // sums that take turns, where one would have to wait for itself

using W32 = __m512i;
using Sum = __m512i;  // lanes i and i + 8 belong together

PS_INLINE W32 load(const i16* p) { return _mm512_loadu_si512(p); }
PS_INLINE void store(i16* p, W32 w) { _mm512_storeu_si512(p, w); }

using V = W32;
constexpr i64 STEP = 32;
PS_INLINE V load_step(const i16* p) { return load(p); }

PS_INLINE Sum no_sum() { return _mm512_setzero_si512(); }
PS_INLINE Sum add_dot(Sum sum, W32 w, W32 x) { return _mm512_dpwssd_epi32(sum, w, x); }
PS_INLINE F8 floats(Sum sum) {
    return _mm256_cvtepi32_ps(_mm256_add_epi32(_mm512_castsi512_si256(sum), _mm512_extracti64x4_epi64(sum, 1)));
}
PS_INLINE Sum add(Sum a, Sum b) { return _mm512_add_epi32(a, b); }

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
struct Signs {
    std::uint64_t minus[4];  // two groups each, a bit for every weight
    __m256i scales;          // by group, in both halves of a word
};
PS_INLINE Signs signs(const u8* groups) {
    __m256i scales, words = sign_words(groups, scales);
    __m128i low = _mm256_castsi256_si128(words), high = _mm256_extracti128_si256(words, 1);
    auto half = [](__m128i v, int i) {
        return static_cast<std::uint64_t>(i ? _mm_extract_epi64(v, 1) : _mm_cvtsi128_si64(v));
    };
    return {{half(low, 0), half(low, 1), half(high, 0), half(high, 1)},
            _mm256_or_si256(scales, _mm256_slli_epi32(scales, 16))};
}
// The vectors of a group (four indices first), signed and scaled.
PS_INLINE W32 grid_weights(const u8* group, const Signs& s, int number) {
    auto vector = [&](int k) { return load128(iq2_xxs::GRID.data() + 8 * static_cast<std::size_t>(group[k])); };
    W32 size = _mm512_inserti64x4(_mm512_castsi256_si512(join(vector(0), vector(1))), join(vector(2), vector(3)), 1);
    W32 scale = _mm512_permutexvar_epi32(_mm512_set1_epi32(number), _mm512_castsi256_si512(s.scales));
    W32 scaled = _mm512_mullo_epi16(size, scale);
    const auto minus = static_cast<__mmask32>(s.minus[number / 2] >> (number % 2 * 32));
    return _mm512_mask_sub_epi16(scaled, minus, _mm512_setzero_si512(), scaled);
}

}  // namespace
