// Memory that kernels work in.  Where the system has none left the program ends: no entry point throws.
#pragma once

#include <cstdio>
#include <cstdlib>

#include "api.h"

// At a multiple of 64.
inline void* allocate(i64 bytes) {
    void* memory = std::aligned_alloc(64, (static_cast<std::size_t>(bytes) + 64) / 64 * 64);
    if (memory) return memory;
    std::fprintf(stderr, "penstock: the system has no %lld bytes of memory for a step\n", static_cast<long long>(bytes));
    std::abort();
}

// What the functions that say how much memory a kernel takes have in common: bytes of so many floats.
constexpr i64 float_bytes(i64 floats) { return floats * static_cast<i64>(sizeof(float)); }
