"""Memory of the process's own, by the page: addresses first, memory when something is written there, and back."""

import ctypes
import mmap
from contextlib import suppress
from typing import Final

from penstock.machine import macos

# M_MMAP_THRESHOLD, M_TRIM_THRESHOLD and M_ARENA_MAX of glibc's malloc.h.
MALLOC_OPTIONS: Final = {-3: 256 << 10, -1: 1 << 20, -8: 4}


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


def give_back(memory: mmap.mmap, start: int, nbytes: int) -> None:
    """The system may have these pages.  What they hold next is not said: nothing, or what they held."""
    advice = getattr(mmap, "MADV_FREE_REUSABLE", mmap.MADV_FREE) if macos.HERE else mmap.MADV_DONTNEED
    memory.madvise(advice, start, nbytes)


def give_back_freed() -> None:
    """Lets the system have what has been freed: the allocator would keep some of it for later."""
    calls = ctypes.CDLL(None)
    if macos.HERE and hasattr(calls, "malloc_zone_pressure_relief"):
        calls.malloc_zone_pressure_relief(None, ctypes.c_size_t(0))
    elif hasattr(calls, "malloc_trim"):  # of glibc
        calls.malloc_trim(0)


def keep_little_freed() -> None:
    """From now on the allocator keeps less of what is freed: large pieces are the system's again at once (glibc would
    learn to keep those of up to 32 MiB), and threads share few heaps instead of eight for each processor."""
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is not None and not macos.HERE:
        for option, value in MALLOC_OPTIONS.items():
            set_option(option, value)
