// Q2_K, Q4_K and IQ2_XXS as bytes, for inputs in PLANES: 64 weights of a block (a unit) at a time.
//
// What binds, counted for Zen 4 (four vector pipes of 256 bits; products and shuffles share three of them, two loads a
// cycle), per unit of 64 weights:
//   IQ2_XXS  8 indices and 8 vectors to load, 7 inserts, 2 changes of sign, 4 products, 1 look-up of scales: 24 pipe slots
//            and 13 vector loads, 7 cycles, 9 weights a cycle.  Measured: 5.7.  Where codes are looked up in registers
//            (grid_unit in isa/avx512.h) 3 in place of the first 23, and 17 slots more for a block.
//   Q2_K     a turn, a mask, a look-up and 2 products: 8 slots on the three pipes, 2.7 cycles; with what a block costs
//            once (minimums, joining the digits, scales) 4.2 cycles, 15 weights a cycle.  Measured: 9.5.
//   Q4_K     a shift, a mask, 4 products, 1 look-up of scales: 12 slots, 4 cycles, 16 weights a cycle.  Measured: 8.
// The rest is waiting: few of a block's operations are independent, and the schedulers hold but two blocks.
//
// A unit's four products stay below 2¹⁵ for every possible byte: 4 · 43 · 127 for IQ2_XXS, 4 · 15 · 127 for Q4_K.
#pragma once

#include "iq2_xxs.h"
#include "k_quants.h"

namespace {

// Scales are small enough to be multiplied into the bytes: 3 · 15.
struct Q2_K_Bytes : Q2_K {
    static constexpr bool SCALED = true;

    struct Block {
        const u8* p;
        decltype(two_bit_products(nullptr)) products;
    };

    static PS_INLINE Block open(const ps_weight& w, i64 row, i64 block) {
        const u8* p = block_address<Q2_K_Bytes>(w, row, block);
        return {p, two_bit_products(p)};
    }
    template <int I>
    static PS_INLINE Bytes weights(const Block& b) {
        return look_up_products<I>(b.p + 16, b.products);
    }
    template <int I>
    static PS_INLINE Bytes inputs(const Block&, Bytes x) {
        return x;
    }
};

struct Q4_K_Bytes : Q4_K {
    static constexpr bool SCALED = false;

    struct Block {
        const u8* p;
        LaneScales scales;
        std::uint64_t minimums;
    };

    static PS_INLINE Block open(const ps_weight& w, i64 row, i64 block) {
        const u8* p = block_address<Q4_K_Bytes>(w, row, block);
        const Small small = small_numbers(p);
        return {p, lane_scales(small.scales), small.minimums};
    }
    template <int I>
    static PS_INLINE Bytes weights(const Block& b) {
        return nibbles64(b.p + 16 + I * 32);
    }
    template <int I>
    static PS_INLINE Bytes inputs(const Block&, Bytes x) {
        return x;
    }
    template <int I>
    static PS_INLINE auto scales(const Block& b) {
        return unit_scales<I>(b.scales);
    }
};

// Signs go to the weights, or to the inputs where bytes of weights have none.
struct IQ2_XXS_Bytes : IQ2_XXS {
    static constexpr bool SCALED = false;

    template <int I>
    static PS_INLINE Bytes weights(const Block& b) {
        return grid_bytes<I>(b.p + 2, b.signs);
    }
    template <int I>
    static PS_INLINE Bytes inputs(const Block& b, Bytes x) {
        return signed_inputs<I>(x, b.signs);
    }
    template <int I>
    static PS_INLINE auto scales(const Block& b) {
        return grid_scales<I>(b.p + 2, b.signs);
    }
};

}  // namespace
