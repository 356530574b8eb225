// The round trips by themselves.
#include "low_precision.h"

#include "share.h"

// x [rows, columns] in place, each row in groups of `group` columns.
PS_EXPORT void ps_round_fp8(float* x, i64 rows, i64 columns, i64 group, i64 threads) {
    over_rows(rows, columns, threads, [&](i64 a, i64 b) {
        for (i64 r = a; r < b; r++) round_fp8(x + r * columns, columns, group);
    });
}

PS_EXPORT void ps_round_fp4(float* x, i64 rows, i64 columns, i64 group, i64 threads) {
    over_rows(rows, columns, threads, [&](i64 a, i64 b) {
        for (i64 r = a; r < b; r++) round_fp4(x + r * columns, columns, group);
    });
}

// x [rows, columns] in place; columns is a power of two.
PS_EXPORT void ps_hadamard(float* x, i64 rows, i64 columns, i64 threads) {
    over_rows(rows, columns, threads, [&](i64 a, i64 b) {
        for (i64 r = a; r < b; r++) hadamard(x + r * columns, columns);
    });
}
