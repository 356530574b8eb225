"""Mapped files and the system's page cache: how much of them is there, and bringing what is not."""

import ctypes
import mmap
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NamedTuple

import numpy as np

from penstock.weights.files import MappedFile

SAMPLES: Final = 512  # pages looked at
TRIED: Final = (
    128 << 20
)  # bytes that are brought to see how fast that is, by each thread; the first ones come slowly
WINDOW: Final = 32 << 20  # bytes that a thread brings at a time
STRIDE: Final = 64 << 10  # between two bytes that are touched: less than any system reads ahead
THREADS: Final = 4


class Absent(NamedTuple):
    """Bytes of mapped files that are not in memory, and about how long it takes to bring them."""

    nbytes: int = 0
    seconds: float = 0.0


def absent(files: Sequence[MappedFile]) -> Absent:
    """By samples, some of which are brought to see how fast that is.  Nothing where the system does not tell."""
    total = sum(file.size for file in files)
    looked, missing = 0, []
    for file in files:
        file.expect_all()  # as the engine does, for large pages
        count = max(1, SAMPLES * file.size // total)
        for start in np.linspace(0, max(0, file.size - mmap.PAGESIZE), count, dtype=np.int64).tolist():
            here = _is_here(file.bytes.ctypes.data + start // mmap.PAGESIZE * mmap.PAGESIZE)
            if here is None:
                return Absent()
            looked += 1
            if not here:
                missing.append((file, start))
    if not missing:
        return Absent()
    nbytes = total * len(missing) // looked
    windows = [
        (file, start, min(TRIED, file.size - start, -(-file.size // THREADS)))
        for file, start in missing[:: -(-len(missing) // THREADS)]
    ]
    begin = time.perf_counter()
    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(lambda window: _touch(*window), windows))
    tried = sum(length for _, _, length in windows)
    return Absent(nbytes, nbytes / tried * (time.perf_counter() - begin))


def _touch(file: MappedFile, start: int, length: int) -> None:
    file.bytes[start : start + length : STRIDE].max()  # lets other threads run


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
                file, start, length = next(self._windows, (None, 0, 0))
            if file is None:
                return
            _touch(file, start, length)

    def stop(self) -> None:
        """Waits for the windows under way."""
        self._stopped = True
        for thread in self._threads:
            thread.join()
