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

#define PS_EXPORT extern "C" __attribute__((visibility("default")))

// Files are compiled for several instruction sets.  What they share must become part of the function that calls it, or
// the linker would take one set's copy for all.
#define PS_INLINE inline __attribute__((always_inline))

// The loop that follows, whole: its length is a small constant.
#if defined(__clang__)
#define PS_UNROLL _Pragma("unroll")
#else
#define PS_UNROLL _Pragma("GCC unroll 8")
#endif

using i64 = std::int64_t;
