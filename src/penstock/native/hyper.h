// Hyper-connections: how the parallel residual streams enter and leave a sublayer, and how they end.
#pragma once

#include "products.h"

constexpr i64 MAX_STREAMS = 16;

// One hyper-connection and the norm behind it: what stays the same from call to call.
struct ps_hyper {
    const ps_weight* fn;                // [(2 + n) · n, n · hidden]
    const float *base, *scale, *norm;   // [(2 + n) · n], [3], [hidden]
    i64 streams, hidden, iterations;    // streams: <= MAX_STREAMS
    float eps, rms_eps;
};

// Into a sublayer: streams [rows, n, hidden] → x [rows, hidden], collapsed and normed, and
// mix [rows, pre n | post n | comb n · n].  Reads 4 · n · hidden bytes per row twice, the second time from the cache.
// Where the sublayer before has not been left yet, its output y and its mix `before` come along, else null.
PS_EXPORT void ps_hyper_enter(const ps_hyper* h, const float* y, const float* before, float* streams, i64 rows,
                              float* x, float* mix, i64 threads);

// Out of a sublayer: its output y [rows, hidden] goes into the streams, in place.
PS_EXPORT void ps_hyper_leave(const float* y, float* streams, const float* mix, i64 rows, i64 n, i64 hidden,
                              i64 threads);

// The end of the streams, and the norm in front of the output matrix.
struct ps_head {
    const ps_weight* fn;               // [n, n · hidden]
    const float *base, *scale, *norm;  // [n], [n], [hidden]
    i64 streams, hidden;               // streams: <= MAX_STREAMS
    float eps, rms_eps;
};

// streams [rows, n, hidden] → x [rows, hidden]: norm of all streams as one vector → fn → sigmoid(· scale + base) + eps
// as weights of the streams → their sum → norm.
PS_EXPORT void ps_head_input(const ps_head* h, const float* streams, i64 rows, float* x, i64 threads);
