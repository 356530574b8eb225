"""Memory of the process's own, by the page: addresses first, memory when something is written there."""

import mmap
from contextlib import suppress


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
