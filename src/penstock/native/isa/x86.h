// What AVX2 and AVX-512 have in common: floats in vectors of 256 bits.
#pragma once

#include <immintrin.h>

#include <cstring>

namespace {

using F8 = __m256;

PS_INLINE F8 splat(float x) { return _mm256_set1_ps(x); }
PS_INLINE F8 load(const float* p) { return _mm256_loadu_ps(p); }
PS_INLINE void store(float* p, F8 v) { _mm256_storeu_ps(p, v); }
PS_INLINE F8 add(F8 a, F8 b) { return _mm256_add_ps(a, b); }
PS_INLINE F8 mul(F8 a, F8 b) { return _mm256_mul_ps(a, b); }
PS_INLINE F8 fma(F8 a, F8 b, F8 c) { return _mm256_fmadd_ps(a, b, c); }    // a · b + c
PS_INLINE F8 fnma(F8 a, F8 b, F8 c) { return _mm256_fnmadd_ps(a, b, c); }  // c − a · b

// ((0+4) + (2+6)) + ((1+5) + (3+7))
PS_INLINE float add_lanes(F8 v) {
    __m128 a = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    __m128 b = _mm_add_ps(a, _mm_movehl_ps(a, a));
    return _mm_cvtss_f32(_mm_add_ss(b, _mm_movehdup_ps(b)));
}

PS_INLINE F8 splat_f16(const u8* p) {
    std::uint16_t half;
    std::memcpy(&half, p, 2);
    return _mm256_cvtph_ps(_mm_set1_epi16(static_cast<short>(half)));
}

PS_INLINE F8 load_f16(const u8* p) { return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))); }

PS_INLINE F8 load_bf16(const u8* p) {
    __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}

// Eight E4M3 numbers, divided by 256: their bits, in the right places, are float16 numbers with another bias.
PS_INLINE F8 load_e4m3(const u8* p) {
    __m128i v = _mm_slli_epi16(_mm_cvtepu8_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))), 8);
    const __m128i most = _mm_set1_epi16(0x3f80);
    __m128i half = _mm_and_si128(_mm_srai_epi16(v, 1), _mm_set1_epi16(static_cast<short>(0xbfff)));
    __m128i nan = _mm_cmpeq_epi16(_mm_and_si128(half, most), most);  // 0x7f and 0xff
    return _mm256_cvtph_ps(_mm_or_si128(half, _mm_and_si128(nan, _mm_set1_epi16(0x7fff))));
}

// The eight bytes of `bytes` as floats.
PS_INLINE F8 floats(std::uint64_t bytes) {
    return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128(static_cast<long long>(bytes))));
}

PS_INLINE void prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0); }

PS_INLINE __m256i load256(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
PS_INLINE __m128i load128(const void* p) { return _mm_loadu_si128(static_cast<const __m128i*>(p)); }
PS_INLINE __m256i join(__m128i low, __m128i high) {
    return _mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1);
}

using B32 = __m256i;

PS_INLINE B32 load_bytes(const u8* p) { return load256(p); }

// The low nibbles of sixteen bytes, then the high ones.
PS_INLINE B32 nibbles(const u8* p) {
    __m128i v = load128(p);
    return _mm256_and_si256(join(v, _mm_srli_epi16(v, 4)), _mm256_set1_epi8(15));
}

// Low and high nibble of each of sixteen bytes in turn.
PS_INLINE B32 nibble_pairs(const u8* p) {
    __m128i v = load128(p), h = _mm_srli_epi16(v, 4);
    return _mm256_and_si256(join(_mm_unpacklo_epi8(v, h), _mm_unpackhi_epi8(v, h)), _mm256_set1_epi8(15));
}

// table[i] for every byte i < 16.
PS_INLINE B32 look_up(const u8* table, B32 index) {
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(load128(table)), index);
}

// A group of 32 in two vectors, for formats that need its sum alone and at once.
struct Pair {
    __m256i a, b;
};
PS_INLINE Pair load_pair(const i16* p) { return {load256(p), load256(p + 16)}; }
PS_INLINE void store(i16* p, i16* q, Pair w) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), w.a);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(q), w.b);
}

// Signed bytes.
PS_INLINE Pair widen(const u8* p) { return {_mm256_cvtepi8_epi16(load128(p)), _mm256_cvtepi8_epi16(load128(p + 16))}; }

// 256 times the signed bytes, in split order.
PS_INLINE Pair times_256(B32 v) {
    return {_mm256_slli_epi16(v, 8), _mm256_and_si256(v, _mm256_set1_epi16(static_cast<short>(0xff00)))};
}

// Signs of the eight groups of an IQ2_XXS block, and 2 · scale + 1 of each.
// Words of a group: four indices, then four fields of seven sign bits and four bits of scale.
PS_INLINE __m256i sign_words(const u8* groups, __m256i& scales) {
    __m256i first = load256(groups), second = load256(groups + 32);
    __m256i words = _mm256_castps_si256(_mm256_shuffle_ps(_mm256_castsi256_ps(first), _mm256_castsi256_ps(second),
                                                          _MM_SHUFFLE(3, 1, 3, 1)));
    words = _mm256_permute4x64_epi64(words, _MM_SHUFFLE(3, 1, 2, 0));
    scales = _mm256_or_si256(_mm256_slli_epi32(_mm256_srli_epi32(words, 28), 1), _mm256_set1_epi32(1));
    // Each seven bits into a byte of their own, then the eighth: set where the seven are an odd number.
    auto field = [&](int shift, unsigned mask) {
        return _mm256_and_si256(_mm256_slli_epi32(words, shift), _mm256_set1_epi32(static_cast<int>(mask)));
    };
    __m256i sevens = _mm256_or_si256(_mm256_or_si256(field(0, 0x7f), field(1, 0x7f00)),
                                     _mm256_or_si256(field(2, 0x7f0000), field(3, 0x7f000000)));
    const __m256i odd = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, -128, -128, 0, -128, 0, 0, -128, -128, 0, 0,
                                                                  -128, 0, -128, -128, 0));
    __m256i folded = _mm256_and_si256(_mm256_xor_si256(sevens, _mm256_srli_epi16(sevens, 4)), _mm256_set1_epi8(15));
    return _mm256_or_si256(sevens, _mm256_shuffle_epi8(odd, folded));
}

}  // namespace
