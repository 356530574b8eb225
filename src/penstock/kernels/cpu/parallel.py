"""Threads: how the work of one op is shared out.

Every row is computed by itself, so how work is cut and who does which piece never shows in a result.  Most kernels
share their work among native threads (threads.h) and only ask here how many; `each` is for the few serial ones.

The number of threads is set here and is none of torch's business: torch's own threads wait for each other at every
operation, and where another process takes a core that wait is hundreds of times the operation.  Whoever uses these
ops leaves torch with one thread (`Engine` does).
"""

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait

# Multiply-adds (or what takes as long) below which a second thread costs more than it brings: waking one takes
# about as long as 2^20 of them.
WORTH_SHARING = 1 << 21

_limit = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class _Worker(threading.local):
    busy = False  # this thread is running a piece of an op


_worker = _Worker()
_pool: ThreadPoolExecutor | None = None
_pool_lock = threading.Lock()


def _forget_pool() -> None:
    global _pool, _pool_lock
    _pool, _pool_lock = None, threading.Lock()


os.register_at_fork(after_in_child=_forget_pool)  # threads do not survive a fork


def _shared_pool() -> ThreadPoolExecutor:
    global _pool
    with _pool_lock:
        if _pool is None:
            _pool = ThreadPoolExecutor(os.cpu_count(), "penstock-op", lambda: setattr(_worker, "busy", True))
        return _pool


def set_threads(count: int) -> None:
    """From now on an op uses at most `count` threads, the calling one included."""
    global _limit
    _limit = count


def threads() -> int:
    """The most threads an op may use here, the calling one included."""
    # An op inside an op: waiting for the own pool could wait forever.
    return 1 if _worker.busy else _limit


def threads_for(work: int) -> int:
    """How many threads `work` multiply-adds deserve."""
    return max(1, min(threads(), work // WORTH_SHARING))


def each(pieces: int, threads: int, body: Callable[[int], None]) -> None:
    """body(0) … body(pieces - 1), each once, on the calling thread and up to `threads` - 1 others."""
    numbers = iter(range(pieces))  # shared: whoever is free takes the next

    def drain() -> None:
        for number in numbers:
            body(number)

    helpers: list[Future[None]] = []
    if min(threads, pieces) > 1:
        pool = _shared_pool()
        helpers = [pool.submit(drain) for _ in range(min(threads, pieces) - 1)]
    try:
        drain()
    finally:  # a helper may still be writing to the caller's buffers, even when the caller itself failed
        wait([helper for helper in helpers if not helper.cancel()])
    for helper in helpers:
        if not helper.cancelled():
            helper.result()


def over_rows(rows: int, work: int, body: Callable[[int, int], None]) -> None:
    """body(start, stop) over ranges that make up [0, rows); work: multiply-adds of all of them together."""
    threads = min(threads_for(work), rows)
    # A few pieces per thread, because rows may differ in cost.
    pieces = 1 if threads <= 1 else min(rows, 4 * threads)
    each(pieces, threads, lambda i: body(rows * i // pieces, rows * (i + 1) // pieces))
