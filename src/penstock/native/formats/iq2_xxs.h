// IQ2_XXS: 256 weights as 32 vectors of a codebook, with signs, and a small integer scale per 32.
//
// A lane's 32 products stay below 2³¹ for every possible byte: 43 · 31 · 32,512 · 32 < 1.4 · 10⁹.
//
// Instructions per 32 weights on AVX2: 8 for the indices, 4 to load vectors and 2 to put them in order, 2 to spread the
// signs and 6 to apply them, 3 to scale, 2 products, 2 sums, 1 share of prefetching and 4 of what a block costs once: 34.
// Measured: four a cycle, which is not quite four weights per cycle.
#pragma once

#include "blocks.h"
#include "iq2_xxs_grid.h"

namespace {

struct IQ2_XXS {
    static constexpr int STREAMS = 2;
    static constexpr Order ORDER = SPLIT;
    static constexpr bool WHOLE = true;
    static constexpr int MINIMUMS = 0;
    static constexpr i64 BYTES = 66;

    struct Block {
        const u8* p;
        Signs signs;
    };

    static PS_INLINE Block open(const ps_weight& w, i64 row, i64 block) {
        const u8* p = block_address<IQ2_XXS>(w, row, block);
        return {p, signs(p + 2)};
    }
    template <int G>
    static PS_INLINE W32 weights(const Block& b) {
        return grid_weights<G>(b.p + 2 + 8 * G, b.signs);
    }
#if defined(PENSTOCK_GRID_UNITS)
    template <int I>
    static PS_INLINE Halves halves(const Block& b) {
        return grid_halves<I>(b.signs);
    }
#endif
    static PS_INLINE F8 scale(const Block& b) { return mul(splat_f16(b.p), splat(0.125f)); }
    static PS_INLINE F8 minimum(const Block&, int) { return splat(0); }
};

}  // namespace
