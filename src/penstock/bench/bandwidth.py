"""How fast this machine reads memory: the pace that decoding cannot beat once a model outgrows the caches."""

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from penstock.machine.memory import read_memory

BUFFER = 1 << 30  # far beyond any cache
SMALLEST = 1 << 26
PIECE = 1 << 22  # bytes that a thread takes at a time
ROUNDS = 5


def read_bandwidth(threads: int, buffer: int | None = None, rounds: int = ROUNDS) -> float:
    """Bytes per second of a streaming read by so many threads: the best of several passes over one buffer.

    >>> read_bandwidth(threads=1, buffer=1 << 26) > 1e8
    True
    """
    size = buffer or min(BUFFER, max(SMALLEST, read_memory().room // 8))
    values = np.ones(size // 4, np.int32)  # written, so that the pages are real ones
    pieces = [values[start : start + PIECE // 4] for start in range(0, len(values), PIECE // 4)]
    best = float("inf")
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(rounds):
            begin = time.perf_counter()
            list(
                pool.map(np.max, pieces)
            )  # a maximum costs less per byte than a sum, and other threads run meanwhile
            best = min(best, time.perf_counter() - begin)
    return values.nbytes / best
