// Memory between the steps of one call, kept by the thread for its next.
#pragma once

#include <cstdlib>
#include <new>

#include "api.h"

// Users that are active on one thread at the same time must have different numbers.
enum WorkspaceUse { IN_A_LAYER, BETWEEN_STEPS, IN_A_PIECE };

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
        kept.floats = 0;
        const std::size_t bytes = (static_cast<std::size_t>(floats) * sizeof(float) + 63) / 64 * 64;
        kept.memory = static_cast<float*>(std::aligned_alloc(64, bytes));
        if (!kept.memory) throw std::bad_alloc();
        kept.floats = floats;
    }
    return kept.memory;
}
