// Rounding on its own, for inputs that are rounded before they are joined with others.
#include "low_precision.h"

// x [rows, n], each row through FP8 in groups of `group` channels, in place.
PS_EXPORT void ps_round_fp8(float* x, i64 rows, i64 n, i64 group) {
    for (i64 r = 0; r < rows; r++) round_fp8(x + r * n, n, group);
}
