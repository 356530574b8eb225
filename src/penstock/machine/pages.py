"""Memory of the process's own, by the page: addresses first, memory when something is written there."""

import ctypes
import mmap
import time
from contextlib import suppress
from functools import cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

FILLED: Final = 64 << 20  # bytes that are made memory to see how long that takes


def reserve(nbytes: int, *, large: bool) -> mmap.mmap:
    """Address space that reads as zeros.  No page of it is memory before it is written.

    large: in large pages where the system has them, for what will be filled; else in small ones, so that a few bytes
    here and there do not cost megabytes.
    """
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
    memory = mmap.mmap(-1, max(1, nbytes), flags=flags)
    advice = getattr(mmap, "MADV_HUGEPAGE" if large else "MADV_NOHUGEPAGE", None)
    if advice is not None:
        with suppress(OSError):  # a kernel without large pages
            memory.madvise(advice)
    return memory


def filling_seconds() -> float:
    """Seconds that a byte of such memory takes to become real, now: little on a machine with free memory, much where
    the system has to look for large pages first."""
    memory, begin = reserve(FILLED, large=True), time.perf_counter()
    for start in range(0, FILLED, mmap.PAGESIZE):
        memory[start] = 1
    return (time.perf_counter() - begin) / FILLED


def will_need(memory: NDArray[np.uint8]) -> None:
    """Lets the system read what is mapped here, if it is not in memory yet, without waiting for it."""
    start = memory.ctypes.data // mmap.PAGESIZE * mmap.PAGESIZE
    with suppress(AttributeError):  # a system without it
        _madvise()(start, memory.ctypes.data + memory.nbytes - start, mmap.MADV_WILLNEED)


@cache
def _madvise() -> Any:
    function = ctypes.CDLL(None).madvise
    function.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return function
