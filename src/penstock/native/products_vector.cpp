// Products with vectors, compiled once per instruction set.
//
// Few inputs and many go different ways, but a lane of a result sees the same operations in the same order, which
// products_scalar.cpp spells out.
#include "formats/groups.h"
#include "formats/iq2_xxs.h"
#include "formats/k_quants.h"
#if defined(PENSTOCK_PLANES)
#include "formats/planes.h"
#endif
#include "vector/few.h"
#include "vector/floats.h"
#include "vector/many.h"
#include "vector/quantise.h"

namespace {

// few<inputs>(), if there are no more than MOST.
template <int MOST, int X = 1, class Few>
PS_INLINE bool run_few(i64 inputs, Few few) {
    if constexpr (X > MOST) return false;
    else if (inputs == X) return few.template operator()<X>(), true;
    else return run_few<MOST, X + 1>(inputs, few);
}

// Up to FEW_INPUTS of them with `few`, more with `many`, MOST at a time.
template <int FEW_INPUTS, i64 MOST, class Few, class Many>
PS_INLINE void divide(i64 first, i64 last, i64 inputs, bool can_be_few, Few few, Many many) {
    if (can_be_few && run_few<FEW_INPUTS>(inputs, few)) return;
    for (i64 from = 0; from < inputs; from += MOST)
        for (i64 j = first; j < last; j += PANEL)
            many(j, least(PANEL, last - j), from, least(MOST, inputs - from));
}

// Few: how the format is read with few inputs, if in another way.
template <class Format, class Few = Format, Order FEW_ORDER = Format::ORDER>
void multiply_integers(const ps_weight& w, i64 first, i64 last, const Inputs& in, float* out, i64 stride,
                       void* scratch) {
    divide<Format::WHOLE ? FEW : FEW_GROUPED, INPUTS>(
        first, last, in.rows, in.values[FEW_ORDER] != nullptr,
        [&]<int X>() { few<Few, X, FEW_ORDER>(w, first, last, in, out, stride); },
        [&](i64 j, i64 rows, i64 from, i64 inputs) {
            many<Format>(w, j, rows, in, from, inputs, out + j - first, stride, scratch);
        });
}

template <class Format>
void multiply_floats(const ps_weight& w, i64 first, i64 last, const Inputs& in, float* out, i64 stride,
                     void* scratch) {
    divide<FEW_GROUPED, FLOAT_INPUTS>(
        first, last, in.rows, true, [&]<int X>() { few_floats<Format, X>(w, first, last, in, out, stride); },
        [&](i64 j, i64 rows, i64 from, i64 inputs) {
            many_floats<Format>(w, j, rows, in, from, inputs, out + j - first, stride, scratch);
        });
}

#if defined(PENSTOCK_PLANES)
constexpr auto multiply_q2_k = multiply_integers<Q2_K, Q2_K_Bytes, PLANES>;
constexpr auto multiply_q4_k = multiply_integers<Q4_K, Q4_K_Bytes, PLANES>;
constexpr auto multiply_iq2_xxs = multiply_integers<IQ2_XXS, IQ2_XXS_Bytes, PLANES>;
#else
constexpr auto multiply_q2_k = multiply_integers<Q2_K>;
constexpr auto multiply_q4_k = multiply_integers<Q4_K>;
constexpr auto multiply_iq2_xxs = multiply_integers<IQ2_XXS>;
#endif

void multiply(const ps_weight& w, i64 first, i64 last, const Inputs& in, float* out, i64 stride, void* scratch) {
    switch (w.type) {
        case W_F32: return multiply_floats<F32>(w, first, last, in, out, stride, scratch);
        case W_F16: return multiply_floats<F16>(w, first, last, in, out, stride, scratch);
        case W_BF16: return multiply_floats<BF16>(w, first, last, in, out, stride, scratch);
        case W_FP8: return multiply_floats<FP8>(w, first, last, in, out, stride, scratch);
        case W_Q8_0: return multiply_integers<Q8_0>(w, first, last, in, out, stride, scratch);
        case W_Q2_K: return multiply_q2_k(w, first, last, in, out, stride, scratch);
        case W_Q4_K: return multiply_q4_k(w, first, last, in, out, stride, scratch);
        case W_IQ2_XXS: return multiply_iq2_xxs(w, first, last, in, out, stride, scratch);
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
#elif defined(PENSTOCK_ISA_AVX512_VNNI)
const Kernels& avx512_vnni_kernels() {
#elif defined(PENSTOCK_ISA_AVX2)
const Kernels& avx2_kernels() {
#elif defined(PENSTOCK_ISA_NEON_DOT)
const Kernels& neon_dot_kernels() {
#else
const Kernels& neon_kernels() {
#endif
    static constexpr Kernels kernels = {ISA_NAME, ISA_STEPS, quantise, multiply, add_scaled, SCRATCH, PANEL, HAS_PLANES,
                                        FEW_GROUPED};
    return kernels;
}
