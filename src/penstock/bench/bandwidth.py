"""How fast this machine reads memory: the pace that decoding cannot beat once a model outgrows the caches."""

import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch

BUFFER = 1 << 30  # far beyond any cache
SMALLEST = 1 << 26
PIECE = 1 << 22  # bytes that a thread takes at a time
ROUNDS = 5


def read_bandwidth(threads: int, buffer: int | None = None, rounds: int = ROUNDS) -> float:
    """Bytes per second of a streaming read by so many threads: the best of several passes over one buffer.

    >>> read_bandwidth(threads=1, buffer=1 << 26) > 1e8
    True
    """
    size = buffer or min(BUFFER, max(SMALLEST, available_memory() // 8))
    values = torch.from_numpy(np.ones(size // 4, np.float32))  # written, so that the pages are real ones
    pieces = values.split(PIECE // 4)
    before = torch.get_num_threads()
    best = float("inf")
    with ThreadPoolExecutor(threads) as pool:
        torch.set_num_threads(1)  # the pool's threads do the sharing
        try:
            for _ in range(rounds):
                begin = time.perf_counter()
                list(pool.map(torch.max, pieces))  # a maximum costs less per byte than a sum
                best = min(best, time.perf_counter() - begin)
        finally:
            torch.set_num_threads(before)
    return values.numel() * 4 / best


def available_memory() -> int:
    """Bytes that can be had without swapping."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


def cache_bytes() -> int:
    """Size of the largest CPU cache; 0 where the system does not say."""
    found = [0]
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = path.read_text().strip()
        unit = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1:], 1)
        found.append(int(text.rstrip("KMG")) * unit)
    return max(found)
