// The few vector operations that products are made of, for the instruction set this file is compiled for.
//
// Everything is in an unnamed namespace, and always inlined: the same code is compiled for several instruction sets,
// and the linker must never take one's function for another's.
//
//   F8    eight floats; all float arithmetic is in lanes of eight, on every machine
//   W32   32 16-bit integers: a group of weights or inputs
//   Sum   32-bit sums of products of W32, in eight lanes or more
//   B32   32 bytes
#pragma once

#include "../kernels.h"

#if defined(PENSTOCK_ISA_AVX512) || defined(PENSTOCK_ISA_AVX512_VNNI)
#include "avx512.h"
#elif defined(PENSTOCK_ISA_AVX2)
#include "avx2.h"
#elif defined(PENSTOCK_ISA_NEON) || defined(PENSTOCK_ISA_NEON_DOT)
#include "neon.h"
#endif
