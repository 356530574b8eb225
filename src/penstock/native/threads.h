// The threads that all kernels share.
//
//   parallel_for(pieces, threads, [&](i64 piece) { … });
//
// runs body(0) … body(pieces − 1), each once, on the calling thread and up to `threads` − 1 helpers, and returns when
// all are done.  Whoever is free takes the next piece, so a thread that loses its core to another process delays
// nothing but the piece in its hands: cut work into several pieces per thread.
//
// Helpers live as long as the process.  They watch for work for a few tenths of a millisecond, then sleep; a call costs one
// or two microseconds while they watch, and some tens when they have to be woken.  A call from inside a body runs
// serially, as does one made while another thread's call has the helpers.  After a fork the child starts without
// helpers and makes its own.  Bodies must not throw.
#pragma once

#include <functional>
#include <type_traits>

#include "api.h"

void parallel_run(i64 pieces, i64 threads, void (*body)(void* context, i64 piece), void* context);

// A thread for as long as the process lives, which gets no signals: those are for the threads of the program.  False: there are no
// more to be had.
bool start_thread(std::function<void()> work);

// Helpers watch for so many microseconds before they sleep, from now on: for callers who come back after so long, again
// and again, and do not want to wake everybody each time.
PS_EXPORT void ps_threads_patience(i64 microseconds);

// Returns 1 when *word has the value, which a device or another thread writes; 0 after so many microseconds.  Watches for
// `patience` of them, then looks now and then.  What was written before the word can be read.
PS_EXPORT i64 ps_wait_for(const std::uint32_t* word, i64 value, i64 patience, i64 microseconds);

// For tests: adds 1 to counts[piece], for every piece, by way of a nested call.
PS_EXPORT void ps_threads_check(i64 pieces, i64 threads, std::int32_t* counts);

template <class Body>
void parallel_for(i64 pieces, i64 threads, Body&& body) {
    if (pieces == 1 || threads <= 1) {
        for (i64 piece = 0; piece < pieces; piece++) body(piece);
        return;
    }
    using Plain = std::remove_reference_t<Body>;
    parallel_run(pieces, threads, [](void* context, i64 piece) { (*static_cast<Plain*>(context))(piece); }, &body);
}
