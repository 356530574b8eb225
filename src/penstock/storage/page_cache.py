"""Mapped files and the system's page cache: how much of them is there, and bringing what is not."""

import ctypes
import mmap
import threading
from collections.abc import Sequence
from typing import Final

import numpy as np

from penstock.weights.files import MappedFile

SAMPLES: Final = 512  # pages looked at
WINDOW: Final = 32 << 20  # bytes that a thread brings at a time
STRIDE: Final = 64 << 10  # between two bytes that are touched: less than any system reads ahead
THREADS: Final = 4


def absent_bytes(files: Sequence[MappedFile]) -> int:
    """About how many bytes of the files the system would have to read; 0 where it does not tell."""
    total = sum(file.size for file in files)
    looked = missing = 0
    for file in files:
        count = max(1, SAMPLES * file.size // total)
        for start in np.linspace(0, max(0, file.size - mmap.PAGESIZE), count, dtype=np.int64).tolist():
            here = _is_here(file.bytes.ctypes.data + start // mmap.PAGESIZE * mmap.PAGESIZE)
            if here is None:
                return 0
            looked += 1
            missing += not here
    return total * missing // looked


def _is_here(address: int) -> bool | None:
    found = (ctypes.c_ubyte * 1)()
    try:
        failed = ctypes.CDLL(None).mincore(ctypes.c_void_p(address), ctypes.c_size_t(mmap.PAGESIZE), found)
    except AttributeError:  # a system without it
        return None
    return None if failed else bool(found[0] & 1)


class Bringing:
    """Touches mapped files from their beginning to their end, so that they are read at the disk's pace and not page by
    page where a layer waits for them.  Through the mapping, because only so they come in large pages."""

    def __init__(self, files: Sequence[MappedFile]):
        self._windows = iter([(file, start) for file in files for start in range(0, file.size, WINDOW)])
        self._lock, self._stopped = threading.Lock(), False
        self._threads = [
            threading.Thread(target=self._bring, name="penstock-bring", daemon=True) for _ in range(THREADS)
        ]
        for thread in self._threads:
            thread.start()

    def _bring(self) -> None:
        while not self._stopped:
            with self._lock:
                file, start = next(self._windows, (None, 0))
            if file is None:
                return
            file.bytes[start : start + WINDOW : STRIDE].max()  # lets other threads run

    def stop(self) -> None:
        """Waits for the windows under way."""
        self._stopped = True
        for thread in self._threads:
            thread.join()
