"""How fast a disk reads at best: the pace that no engine can beat, so it must not be measured too low.

With other programs keeping both of two cores busy, reads as large as an expert came at 2.3 to 3.4 GB/s and smaller
ones at 4.2 to 4.6; with nothing added, neither was reliably the faster.  So both are measured, and the faster counts.
"""

import mmap
import os
import random
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from penstock.errors import OptionError
from penstock.machine.disk import open_direct

THREADS: Final = 8
PIECES: Final = (7 << 20, 512 << 10)  # about one expert, and what Penstock reads at a time
SECONDS: Final = 1.5  # for each


def best_bandwidth(path: Path, seconds: float = SECONDS) -> float:
    """Bytes per second of direct reads all over a file, several at a time."""
    return max(_bandwidth(path, piece, seconds) for piece in PIECES)


def _bandwidth(path: Path, piece: int, seconds: float) -> float:
    size = path.stat().st_size
    if size < max(PIECES):
        raise OptionError(
            f"{path}: {size:,} bytes, expected at least {max(PIECES):,} to measure the disk with"
        )
    descriptor, direct = open_direct(path)
    begin = time.perf_counter()

    def read() -> int:
        done, buffer, places = 0, mmap.mmap(-1, piece), random.Random()  # page-aligned, as direct reads need
        while time.perf_counter() - begin < seconds:
            done += os.preadv(descriptor, [buffer], places.randrange(0, size - piece + 1, mmap.PAGESIZE))
        return done

    try:
        if not direct:
            raise OptionError(f"{path}: its file system has no direct reads, so the disk cannot be measured")
        with ThreadPoolExecutor(THREADS) as pool:
            done = sum(future.result() for future in [pool.submit(read) for _ in range(THREADS)])
        return done / (time.perf_counter() - begin)
    finally:
        os.close(descriptor)
