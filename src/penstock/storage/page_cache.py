"""Mapped files and the system's page cache: how much of them is there, and bringing what is not."""

import ctypes
import mmap
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NamedTuple

import numpy as np

from penstock.machine.cpu import read_cpu
from penstock.weights.files import MappedFile

SAMPLES: Final = 512  # pages looked at
TRIED: Final = (
    128 << 20
)  # bytes that are brought to see how fast that is, by each thread; the first ones come slowly
WINDOW: Final = 32 << 20  # bytes that a thread brings at a time
STRIDE: Final = 64 << 10  # between two bytes that are touched: less than any system reads ahead
THREADS: Final = 4


Window = tuple[MappedFile, int, int]  # from a byte on, so many


class Absent(NamedTuple):
    """Bytes of mapped files that are not in memory, about how long it takes to bring them, and for how many seconds
    that keeps all processors from other work."""

    nbytes: int = 0
    seconds: float = 0.0
    working: float = 0.0


class Gaps(NamedTuple):
    """How much of mapped files is not in memory, and some of it: two times as much as is needed to try."""

    nbytes: int = 0
    windows: tuple[Window, ...] = ()


def find_gaps(files: Sequence[MappedFile]) -> Gaps:
    """By samples.  None where the system does not tell."""
    total = sum(file.size for file in files)
    looked, missing = 0, []
    for file in files:
        file.expect_all()  # as the engine does, for large pages
        count = max(1, SAMPLES * file.size // total)
        for start in np.linspace(0, max(0, file.size - mmap.PAGESIZE), count, dtype=np.int64).tolist():
            here = _is_here(file.bytes.ctypes.data + start // mmap.PAGESIZE * mmap.PAGESIZE)
            if here is None:
                return Gaps()
            looked += 1
            if not here:
                missing.append((file, start))
    several = 2 * THREADS
    windows = [
        (file, start, min(TRIED, file.size - start, -(-file.size // several)))
        for file, start in missing[:: max(1, -(-len(missing) // several))]
    ]
    return Gaps(total * len(missing) // looked if missing else 0, tuple(windows))


def try_to_bring(nbytes: int, windows: Sequence[Window]) -> Absent:
    """So many bytes, as these come now.

    Whoever brings them touches few pages, a layer all of them.  The processors of a virtual machine have to be told
    by its host where each one lies, which shows in how much longer the first time takes than the next."""
    tried = sum(length for _, _, length in windows)
    if not tried:
        return Absent(nbytes)

    def touch(stride: int) -> float:
        begin = time.perf_counter()
        list(pool.map(lambda window: _touch(window, stride), windows))
        return time.perf_counter() - begin

    with ThreadPoolExecutor(THREADS) as pool:
        worked = time.process_time()
        seconds = touch(STRIDE)
        working = (time.process_time() - worked) / read_cpu().usable
        first, again = touch(mmap.PAGESIZE), touch(mmap.PAGESIZE)
    times = nbytes / tried
    return Absent(nbytes, times * seconds, times * (working + max(0.0, first - again)))


def _touch(window: Window, stride: int = STRIDE) -> None:
    file, start, length = window
    file.bytes[start : start + length : stride].max()  # lets other threads run


def _is_here(address: int) -> bool | None:
    found = (ctypes.c_ubyte * 1)()
    try:
        failed = ctypes.CDLL(None).mincore(ctypes.c_void_p(address), ctypes.c_size_t(mmap.PAGESIZE), found)
    except AttributeError:  # a system without it
        return None
    return None if failed else bool(found[0] & 1)


class Bringing:
    """Touches stretches of mapped files from one end to the other, so that they are read at the disk's pace and not
    page by page where a layer waits for them.  Through the mapping, because only so they come in large pages."""

    def __init__(self, extents: Sequence[tuple[MappedFile, int, int]]):
        self._windows = iter(
            [
                (file, start, min(WINDOW, end - start))
                for file, first, end in extents
                for start in range(first, end, WINDOW)
            ]
        )
        self._lock, self._stopped = threading.Lock(), False
        self._threads = [
            threading.Thread(target=self._bring, name="penstock-bring", daemon=True) for _ in range(THREADS)
        ]
        for thread in self._threads:
            thread.start()

    def _bring(self) -> None:
        while not self._stopped:
            with self._lock:
                window = next(self._windows, None)
            if window is None:
                return
            _touch(window)

    def stop(self) -> None:
        """Waits for the windows under way."""
        self._stopped = True
        for thread in self._threads:
            thread.join()
