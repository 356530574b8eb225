// The steps' kernels for the instruction set this file is compiled for.
//
// Everything is in an unnamed namespace or inlined, for the reason given in isa/isa.h.
#include "step_kernels.h"

#include "kernels.h"
#include "steps/attend.h"
#include "steps/compress.h"
#include "steps/logits.h"
#include "steps/mix.h"
#include "steps/multiply.h"
#include "steps/project.h"
#include "steps/score.h"
#include "steps/swiglu.h"

#if defined(PENSTOCK_ISA_AVX512_VNNI)  // for avx512 too
const StepKernels avx512_steps = {
#elif defined(PENSTOCK_ISA_AVX2)
const StepKernels avx2_steps = {
#else
const StepKernels baseline_steps = {
#endif
    .norm_rows = norm_rows,
    .enter_rows = enter_rows,
    .leave_rows = leave_rows,
    .head_rows = head_rows,
    .low_rank_rows = low_rank_rows,
    .finish_heads = finish_heads,
    .finish_index_heads = finish_index_heads,
    .key_rows = key_rows,
    .compress_window = compress_window,
    .score_rows = score_rows,
    .attend_token = attend_token,
    .multiply_floats = multiply_floats,
    .swiglu = swiglu,
    .logits_top = logits_top,
    .weigh_logits = weigh_logits,
};
