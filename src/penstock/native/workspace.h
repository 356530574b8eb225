// Memory between the steps of one call, kept by the thread for its next.
#pragma once

#include "memory.h"

// Users that are active on one thread at the same time must have different numbers.
enum WorkspaceUse { IN_A_LAYER, BETWEEN_STEPS, IN_A_PIECE, DECODED, DECODED_TOO };

template <WorkspaceUse>
float* workspace(i64 floats) {
    struct Kept {
        float* memory = nullptr;
        i64 floats = 0;
        ~Kept() { std::free(memory); }
    };
    thread_local Kept kept;
    if (kept.floats < floats) {
        std::free(kept.memory);
        kept.memory = static_cast<float*>(allocate(float_bytes(floats)));
        kept.floats = floats;
    }
    return kept.memory;
}
