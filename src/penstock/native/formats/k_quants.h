// Q4_K and Q2_K: 256 weights with one float16 scale, small integer scales for groups of them, and minimums.
//
// With inputs of at most 32,512 a lane's 32 products stay below 2³¹ for every possible byte:
//   Q4_K  15 · 63 · 32,512 · 32 < 2³⁰       Q2_K  3 · 15 · 32,512 · 32 < 2²⁶
#pragma once

#include "blocks.h"

namespace {

struct Q4_K {
    static constexpr int STREAMS = 1;
    static constexpr Order ORDER = SPLIT;
    static constexpr bool WHOLE = true;  // one float scale for 256
    static constexpr int MINIMUMS = 8;
    static constexpr i64 BYTES = 144;

    struct Block {
        const u8* p;
        GroupScales scales;
        std::uint64_t minimums;
    };

    // A byte for each of eight groups.
    struct Small {
        std::uint64_t scales, minimums;
    };
    // Six bits each.  Groups 0–3 have theirs in one byte; groups 4–7 four here and two atop the bytes of 0–3.
    static PS_INLINE Small small_numbers(const u8* p) {
        std::uint32_t s[3];
        std::memcpy(s, p + 4, 12);
        const std::uint32_t scales = (s[2] & 0x0f0f0f0f) | (s[0] >> 6 & 0x03030303) << 4;
        const std::uint32_t minimums = (s[2] >> 4 & 0x0f0f0f0f) | (s[1] >> 6 & 0x03030303) << 4;
        auto pair = [](std::uint32_t low, std::uint32_t high) {
            return static_cast<std::uint64_t>(high) << 32 | (low & 0x3f3f3f3f);
        };
        return {pair(s[0], scales), pair(s[1], minimums)};
    }

    static PS_INLINE Block open(const ps_weight& w, i64 row, i64 block) {
        const u8* p = block_address<Q4_K>(w, row, block);
        const Small small = small_numbers(p);
        return {p, group_scales(small.scales), small.minimums};
    }
    template <int G>
    static PS_INLINE W32 weights(const Block& b) {
        return scaled(fields<G % 2 * 4, 15>(load_bytes(b.p + 16 + G / 2 * 32)), b.scales, G);
    }
    static PS_INLINE F8 scale(const auto& b) { return splat_f16(b.p); }
    static PS_INLINE F8 minimum(const auto& b, int) { return mul(splat_f16(b.p + 2), floats(b.minimums)); }
};

struct Q2_K {
    static constexpr int STREAMS = 2;
    static constexpr Order ORDER = SPLIT;
    static constexpr bool WHOLE = true;
    static constexpr int MINIMUMS = 16;
    static constexpr i64 BYTES = 84;

    struct Block {
        const u8* p;
        HalfScales scales;
    };

    static PS_INLINE Block open(const ps_weight& w, i64 row, i64 block) {
        const u8* p = block_address<Q2_K>(w, row, block);
        return {p, half_scales(p)};
    }
    template <int G>
    static PS_INLINE W32 weights(const Block& b) {
        return scaled(fields<G % 4 * 2, 3>(load_bytes(b.p + 16 + G / 4 * 32)), b.scales, G);
    }
    static PS_INLINE F8 scale(const auto& b) { return splat_f16(b.p + 80); }
    static PS_INLINE F8 minimum(const auto& b, int half) {
        std::uint64_t bytes;
        std::memcpy(&bytes, b.p + 8 * half, 8);
        return mul(splat_f16(b.p + 82), floats(bytes >> 4 & 0x0f0f0f0f0f0f0f0f));
    }
};

}  // namespace
