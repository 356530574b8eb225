// How rows are shared out between threads.
#pragma once

#include <algorithm>

#include "threads.h"

// body(first, last) over ranges that make up [0, rows).  row_time: nanoseconds that a row takes, roughly.  Several
// pieces per thread, because rows may differ in cost; no second thread for less work than waking it takes.
template <class Body>
void over_rows(i64 rows, i64 row_time, i64 threads, Body&& body) {
    if (rows <= 0) return;
    threads = std::min(threads, 1 + rows * row_time / 4000);
    const i64 pieces = threads <= 1 ? 1 : std::min(rows, 4 * threads);
    parallel_for(pieces, threads, [&](i64 i) { body(rows * i / pieces, rows * (i + 1) / pieces); });
}

// Of so many pieces that take as long as each other, those to be left whole: where they are few, the rest would keep one
// thread busy while others wait, and is better divided.
inline i64 whole_pieces(i64 pieces, i64 threads) {
    return pieces < 4 * threads ? pieces / threads * threads : pieces;
}
