// Formats with a scale for every 32 weights: Q8_0, MXFP4 and the FP4 of checkpoints.  A row may end within a block of
// 256.  Four products of at most 128 · 32,512, or 3,072 · 32,512, make a lane's sum: no overflow.
#pragma once

#include <array>
#include <bit>

#include "blocks.h"

namespace {

struct Q8_0 {
    static constexpr int STREAMS = 2;
    static constexpr Order ORDER = NATURAL;
    static constexpr bool WHOLE = false;
    static constexpr int MINIMUMS = 0;
    static constexpr i64 BYTES = 8 * 34;

    struct Block {
        const u8* p;
    };

    static PS_INLINE Block open(const ps_weight& w, i64 row, i64 block) { return {block_address<Q8_0>(w, row, block)}; }
    template <int G>
    static PS_INLINE Pair weights(const Block& b) {
        return widen(b.p + G * 34 + 2);
    }
    template <int G>
    static PS_INLINE F8 scale(const Block& b) {
        return splat_f16(b.p + G * 34);
    }
    static PS_INLINE F8 minimum(const Block&, int) { return splat(0); }

#if defined(PENSTOCK_PAIRS)
    // Two rows side by side: half H of group G of both, and their scales.
    template <int G, int H>
    static PS_INLINE V two_weights(const Block& p, const Block& q) {
        return widen(p.p + G * 34 + 2 + H * 16, q.p + G * 34 + 2 + H * 16);
    }
    template <int G>
    static PS_INLINE Sides two_scales(const Block& p, const Block& q) {
        return splat_f16(p.p + G * 34, q.p + G * 34);
    }
#endif
};

// Twice the value of the sixteen E2M1 codes; multiplied by 256 when widened.
alignas(16) constexpr u8 TWICE_E2M1[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, 255, 254, 253, 252, 250, 248, 244};

// 2^(b − 127) / 512 for those weights, by b: a number without rounding, if a subnormal one for the first few.
using Powers = std::array<float, 256>;

constexpr Powers powers(bool nan_at_the_end) {
    Powers out{};
    for (std::uint32_t b = 0; b < 256; b++) out[b] = std::bit_cast<float>(b > 9 ? (b - 9) << 23 : 1u << (b + 13));
    if (nan_at_the_end) out[255] = __builtin_nanf("");
    return out;
}

inline constexpr Powers MXFP4_SCALES = powers(false), FP4_SCALES = powers(true);

struct MXFP4 {
    static constexpr int STREAMS = 1;
    static constexpr Order ORDER = SPLIT;
    static constexpr bool WHOLE = false;
    static constexpr int MINIMUMS = 0;
    static constexpr i64 BYTES = 8 * 17;

    struct Block {
        const u8* p;
    };

    static PS_INLINE Block open(const ps_weight& w, i64 row, i64 block) { return {block_address<MXFP4>(w, row, block)}; }
    template <int G>
    static PS_INLINE Pair weights(const Block& b) {
        return times_256(look_up(TWICE_E2M1, nibbles(b.p + G * 17 + 1)));
    }
    template <int G>
    static PS_INLINE F8 scale(const Block& b) {
        return splat(MXFP4_SCALES[b.p[G * 17]]);
    }
    static PS_INLINE F8 minimum(const Block&, int) { return splat(0); }

#if defined(PENSTOCK_PAIRS)
    // Two rows side by side: half H of group G of both, in split order, and their scales.
    template <int G, int H>
    static PS_INLINE V two_weights(const Block& p, const Block& q) {
        return half_times_256<H>(look_up(TWICE_E2M1, nibbles(p.p + G * 17 + 1, q.p + G * 17 + 1)));
    }
    template <int G>
    static PS_INLINE Sides two_scales(const Block& p, const Block& q) {
        return join(splat(MXFP4_SCALES[p.p[G * 17]]), splat(MXFP4_SCALES[q.p[G * 17]]));
    }
#endif
};

struct FP4 {
    static constexpr int STREAMS = 1;
    static constexpr Order ORDER = SPLIT;
    static constexpr bool WHOLE = false;
    static constexpr int MINIMUMS = 0;
    static constexpr i64 BYTES = 8 * 16;

    struct Block {
        const u8 *p, *scales;
    };

    static PS_INLINE Block open(const ps_weight& w, i64 row, i64 block) {
        return {block_address<FP4>(w, row, block), static_cast<const u8*>(w.scale) + row * (w.columns / 32) + block * 8};
    }
    template <int G>
    static PS_INLINE Pair weights(const Block& b) {
        return times_256(look_up(TWICE_E2M1, nibble_pairs(b.p + G * 16)));
    }
    template <int G>
    static PS_INLINE F8 scale(const Block& b) {
        return splat(FP4_SCALES[b.scales[G]]);
    }
    static PS_INLINE F8 minimum(const Block&, int) { return splat(0); }

#if defined(PENSTOCK_PAIRS)
    template <int G, int H>
    static PS_INLINE V two_weights(const Block& p, const Block& q) {
        return half_times_256<H>(look_up(TWICE_E2M1, nibble_pairs(p.p + G * 16, q.p + G * 16)));
    }
    template <int G>
    static PS_INLINE Sides two_scales(const Block& p, const Block& q) {
        return join(splat(FP4_SCALES[p.scales[G]]), splat(FP4_SCALES[q.scales[G]]));
    }
#endif
};

}  // namespace
