// How attention is shared out between threads; steps/attend.h computes it.
#include <algorithm>

#include "kernels.h"
#include "share.h"
#include "step_bytes.h"
#include "step_kernels.h"
#include "workspace.h"

i64 attention_piece_floats(i64 heads, i64 dim) {
    return ATTENTION_BLOCK * attention_stride(dim) + heads * (ATTENTION_BLOCK + padded(dim) + 2);
}

constexpr i64 PART_HEADS = 8;  // for which it pays to gather rows once more

// A token is a piece.  Those that would leave a thread without one are divided by heads, and then every part gathers
// its rows for itself.
PS_EXPORT void ps_attend(const ps_attention* a, const ps_attention_call* c, i64 threads) {
    if (c->tokens <= 0 || a->heads <= 0) return;
    const i64 seen = std::min(a->window_size, c->position + c->tokens) + (c->picks ? c->picks_width : c->row_count);
    threads = std::min(threads, 1 + c->tokens * a->heads * a->dim * seen / (20 * 4000));
    const i64 whole = whole_pieces(c->tokens, threads);
    const i64 parts = std::min(a->heads, std::clamp(a->heads / PART_HEADS, threads, 2 * threads));
    parallel_for(whole + (c->tokens - whole) * parts, threads, [&](i64 piece) {
        i64 token = piece, first = 0, last = a->heads;
        if (piece >= whole) {
            const i64 part = (piece - whole) % parts;
            token = whole + (piece - whole) / parts, first = a->heads * part / parts, last = a->heads * (part + 1) / parts;
        }
        kernels().steps.attend_token(*a, *c, token, first, last - first,
                                     workspace<IN_A_PIECE>(attention_piece_floats(last - first, a->dim)));
    });
}
