// The round trips by themselves.
#include "low_precision.h"

#include "share.h"

PS_DISPATCH void fp8_rows(float* x, i64 first, i64 last, i64 columns, i64 group) {
    for (i64 r = first; r < last; r++) round_fp8(x + r * columns, columns, group);
}

PS_DISPATCH void fp4_rows(float* x, i64 first, i64 last, i64 columns, i64 group) {
    for (i64 r = first; r < last; r++) round_fp4(x + r * columns, columns, group);
}

PS_DISPATCH void hadamard_rows(float* x, i64 first, i64 last, i64 columns) {
    for (i64 r = first; r < last; r++) hadamard(x + r * columns, columns);
}

// x [rows, columns] in place, each row in groups of `group` columns.
PS_EXPORT void ps_round_fp8(float* x, i64 rows, i64 columns, i64 group, i64 threads) {
    over_rows(rows, columns, threads, [&](i64 a, i64 b) { fp8_rows(x, a, b, columns, group); });
}

PS_EXPORT void ps_round_fp4(float* x, i64 rows, i64 columns, i64 group, i64 threads) {
    over_rows(rows, columns, threads, [&](i64 a, i64 b) { fp4_rows(x, a, b, columns, group); });
}

// x [rows, columns] in place; columns is a power of two.
PS_EXPORT void ps_hadamard(float* x, i64 rows, i64 columns, i64 threads) {
    over_rows(rows, columns, threads, [&](i64 a, i64 b) { hadamard_rows(x, a, b, columns); });
}
