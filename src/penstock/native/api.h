// What every entry point has in common.
//
// Entry points are pure: they read their inputs, write their outputs and keep nothing.  Those that take a number of
// threads share their work with the helpers of threads.h and are done when they return; the others are serial.
// No entry point throws: where memory is missing the program ends (memory.h).
// They check nothing; the caller has made sure that pointers, sizes and strides fit.  Strides count elements.  Unless
// said otherwise arrays are float32, row-major and contiguous, and need no more alignment than their element type.
// A row's result depends on that row alone: not on how many rows a call covers, nor on where they lie in memory.
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(__x86_64__) && defined(__ELF__) && defined(__GLIBC__) && !defined(PENSTOCK_NO_DISPATCH) && \
    ((defined(__GNUC__) && !defined(__clang__) && __GNUC__ >= 12) || (defined(__clang__) && __clang_major__ >= 16))
// One copy per generation of x86-64, the best one picked when the library is loaded.
#define PS_DISPATCH __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define PS_DISPATCH
#endif

#define PS_EXPORT extern "C" __attribute__((visibility("default")))
#define PS_KERNEL PS_EXPORT PS_DISPATCH

// Helpers must become part of the dispatched copy that calls them, or they would run as baseline code.
#define PS_INLINE inline __attribute__((always_inline))

using i64 = std::int64_t;
