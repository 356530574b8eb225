// The activation inside an expert.
#pragma once

#include "api.h"

// silu(min(gate, limit)) · clamp(up, ±limit) for n elements.
PS_EXPORT void ps_swiglu(const float* gate, const float* up, i64 n, float limit, float* out);
