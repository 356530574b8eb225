// What the vector versions of products share.
#pragma once

#include <cstring>
#include <utility>

#include "../isa/isa.h"
#include "../kernels.h"

namespace {

constexpr i64 AHEAD = 2048;  // bytes between what is computed with and what is asked of memory
constexpr i64 LANES = 8;     // of every sum, so that all instruction sets round alike

PS_INLINE i64 least(i64 a, i64 b) { return a < b ? a : b; }

PS_INLINE void ask_ahead(const u8* p, i64 bytes) {
    for (i64 at = 0; at < bytes; at += 64) prefetch(p + AHEAD + at);
}

// body<0>() … body<N − 1>()
template <int N, class Body>
PS_INLINE void unrolled(Body body) {
    [&]<int... I>(std::integer_sequence<int, I...>) __attribute__((always_inline)) {
        (body.template operator()<I>(), ...);
    }(std::make_integer_sequence<int, N>{});
}
#define PS_EACH <int G>() __attribute__((always_inline))

}  // namespace
