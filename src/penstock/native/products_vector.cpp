// Products with vectors, compiled once per instruction set.
//
// Few inputs and many go different ways, but a lane of a result sees the same operations in the same order, which
// products_scalar.cpp spells out.
#include "formats/groups.h"
#include "formats/iq2_xxs.h"
#include "formats/k_quants.h"
#include "vector/few.h"
#include "vector/floats.h"
#include "vector/many.h"
#include "vector/quantise.h"

namespace {

template <i64 MOST, class Few1, class Few2, class Few3, class Many>
PS_INLINE void divide(i64 first, i64 last, const Inputs& in, float* out, i64 out_stride, Few1 one, Few2 two,
                      Few3 three, Many many) {
    if (in.rows == 1) return one();
    if (in.rows == 2) return two();
    if (in.rows == 3) return three();
    for (i64 from = 0; from < in.rows; from += MOST)
        for (i64 j = first; j < last; j += PANEL)
            many(j, least(PANEL, last - j), from, least(MOST, in.rows - from), out + j - first, out_stride);
}

template <class Format>
void multiply_integers(const ps_weight& w, i64 first, i64 last, const Inputs& in, float* out, i64 stride,
                       void* scratch) {
    divide<INPUTS>(
        first, last, in, out, stride, [&] { few<Format, 1>(w, first, last, in, out, stride); },
        [&] { few<Format, 2>(w, first, last, in, out, stride); },
        [&] { few<Format, 3>(w, first, last, in, out, stride); },
        [&](i64 j, i64 rows, i64 from, i64 inputs, float* to, i64 step) {
            many<Format>(w, j, rows, in, from, inputs, to, step, scratch);
        });
}

template <class Format>
void multiply_floats(const ps_weight& w, i64 first, i64 last, const Inputs& in, float* out, i64 stride,
                     void* scratch) {
    divide<FLOAT_INPUTS>(
        first, last, in, out, stride, [&] { few_floats<Format, 1>(w, first, last, in, out, stride); },
        [&] { few_floats<Format, 2>(w, first, last, in, out, stride); },
        [&] { few_floats<Format, 3>(w, first, last, in, out, stride); },
        [&](i64 j, i64 rows, i64 from, i64 inputs, float* to, i64 step) {
            many_floats<Format>(w, j, rows, in, from, inputs, to, step, scratch);
        });
}

void multiply(const ps_weight& w, i64 first, i64 last, const Inputs& in, float* out, i64 stride, void* scratch) {
    switch (w.type) {
        case W_F32: return multiply_floats<F32>(w, first, last, in, out, stride, scratch);
        case W_F16: return multiply_floats<F16>(w, first, last, in, out, stride, scratch);
        case W_BF16: return multiply_floats<BF16>(w, first, last, in, out, stride, scratch);
        case W_FP8: return multiply_floats<FP8>(w, first, last, in, out, stride, scratch);
        case W_Q8_0: return multiply_integers<Q8_0>(w, first, last, in, out, stride, scratch);
        case W_Q2_K: return multiply_integers<Q2_K>(w, first, last, in, out, stride, scratch);
        case W_Q4_K: return multiply_integers<Q4_K>(w, first, last, in, out, stride, scratch);
        case W_IQ2_XXS: return multiply_integers<IQ2_XXS>(w, first, last, in, out, stride, scratch);
        case W_MXFP4: return multiply_integers<MXFP4>(w, first, last, in, out, stride, scratch);
        case W_FP4: return multiply_integers<FP4>(w, first, last, in, out, stride, scratch);
    }
}

void add_scaled(float weight, const float* x, i64 n, float* out) {
    const F8 factor = splat(weight);
    i64 i = 0;
    for (; i + LANES <= n; i += LANES) store(out + i, fma(factor, load(x + i), load(out + i)));
    for (; i < n; i++) out[i] = __builtin_fmaf(weight, x[i], out[i]);
}

constexpr i64 INTEGER_SCRATCH = sizeof(Panel) + sizeof(Lanes), FLOAT_SCRATCH = sizeof(FloatPanel) + sizeof(FloatLanes);
constexpr i64 SCRATCH = INTEGER_SCRATCH > FLOAT_SCRATCH ? INTEGER_SCRATCH : FLOAT_SCRATCH;

}  // namespace

#if defined(PENSTOCK_ISA_AVX512)
const Kernels& avx512_kernels() {
#elif defined(PENSTOCK_ISA_AVX2)
const Kernels& avx2_kernels() {
#else
const Kernels& neon_kernels() {
#endif
    static constexpr Kernels kernels = {ISA_NAME, quantise, multiply, add_scaled, SCRATCH, PANEL};
    return kernels;
}
