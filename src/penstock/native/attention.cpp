// How attention is shared out between threads; steps/attend.h computes it.
#include "kernels.h"
#include "share.h"
#include "step_bytes.h"
#include "step_kernels.h"
#include "workspace.h"

i64 attention_piece_floats(i64 heads, i64 dim) {
    return ATTENTION_BLOCK * attention_stride(dim) + heads * (ATTENTION_BLOCK + padded(dim) + 2);
}

// Where there are tokens enough for all threads no token is divided; else every part of its heads gathers its rows
// for itself.
PS_EXPORT void ps_attend(const ps_attention* a, const ps_attention_call* c, i64 threads) {
    if (c->tokens <= 0 || a->heads <= 0) return;
    const i64 seen = std::min(a->window_size, c->position + c->tokens) + (c->picks ? c->picks_width : c->row_count);
    threads = std::min(threads, 1 + c->tokens * a->heads * a->dim * seen / (20 * 4000));
    i64 pieces = c->tokens, parts = 1;
    if (c->tokens < threads) parts = std::min(a->heads, 2 * threads);
    parallel_for(pieces * parts, threads, [&](i64 piece) {
        const i64 first = a->heads * (piece % parts) / parts, last = a->heads * (piece % parts + 1) / parts;
        kernels().steps.attend_token(*a, *c, piece / parts, first, last - first,
                     workspace<IN_A_PIECE>(attention_piece_floats(last - first, a->dim)));
    });
}
