// A draft block's guesses in a row.
#pragma once

#include "hyper.h"
#include "router.h"
#include "steps.h"

// All parts of a draft block: what stays the same from call to call.
struct ps_draft {
    const ps_weight* embedding;                         // [vocabulary, hidden], of a type that ps_encode decodes
    const float *embedding_norm, *stream_norm;          // [hidden]
    const ps_weight *both, *of_embedding, *of_streams;  // [hidden, 2 · hidden], or null and two of [hidden, hidden]
    const float* frequencies;                           // of the rotation
    const ps_hyper *attention_hyper, *experts_hyper;
    const ps_attention_layer* attention;  // without a compressor
    const ps_projections* kv;             // these two fill the window alone
    const ps_keys* keys;
    const ps_router* router;
    const ps_expert* shared;
    const ps_head* head;
    float limit, shared_limit, eps;
};

// Floats of memory for a call with so many rows.
PS_EXPORT i64 ps_draft_floats(const ps_draft* d, i64 rows, i64 vocabulary);

// Pairs of streams [rows, n, hidden] and the tokens after them [rows] go into the window from state->position on, and after
// the last of them at most `most` tokens are guessed, each from the one before and from the streams that it was made of.
// The row of a guess lies where the next pair will.  Guessing ends when all guesses so far are less likely than `least` to
// be right together.  Returns how many there are: their tokens and how likely each is, [most]; ids [most, router's count]:
// the experts that ran.  Every number is the one that the steps give by themselves.
PS_EXPORT i64 ps_draft_run(const ps_draft* d, const ps_expert* const* table, i64 experts, const ps_weight* output,
                           const ps_sequence_state* state, const float* streams, const i64* tokens, i64 rows, i64 most,
                           float least, i64* guesses, float* chances, i64* ids, float* memory, i64 threads);
