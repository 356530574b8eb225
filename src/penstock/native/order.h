// Ranking by score: a total order on (score, id) packed into one integer, so that no sort needs to be stable.
#pragma once

#include <bit>
#include <cstdint>

using u32 = std::uint32_t;
using u64 = std::uint64_t;

// Greater means better: higher score first, then lower id.  Both zeros are equal; NaN is worse than anything.
inline u64 rank(float score, u32 id) {
    u32 key = 0;
    if (score == score) {
        u32 b = std::bit_cast<u32>(score + 0.0f);  // −0 + 0 = +0
        key = b & 0x80000000u ? ~b : b | 0x80000000u;
    }
    return static_cast<u64>(key) << 32 | ~id;
}

inline u32 ranked_id(u64 rank) { return ~static_cast<u32>(rank); }
