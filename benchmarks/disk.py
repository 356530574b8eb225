"""How fast a disk reads at best: the pace that no engine can beat, so it must not be measured too low.

Direct reads all over a file by threads that do nothing else, several at a time, into large pages: one page table
entry per 2 MiB costs the processor less than 512 of them.  What an engine reads at a time is measured and larger
pieces, and the fastest counts.
"""

import random
import time
from pathlib import Path
from typing import Final

import numpy as np

from penstock.errors import OptionError
from penstock.machine.pages import reserve
from penstock.storage.reader import BLOCK, CHUNK, Piece, Reader

EXPERT: Final = 7 << 20  # bytes, about
IN_FLIGHT: Final = 12  # experts
CHUNKS: Final = (CHUNK, 1 << 20, 2 << 20)  # bytes that a thread reads at a time
SECONDS: Final = 1.0  # for each


def best_bandwidth(path: Path, seconds: float = SECONDS) -> float:
    """Bytes per second."""
    return max(_bandwidth(path, chunk, seconds) for chunk in CHUNKS)


def _bandwidth(path: Path, chunk: int, seconds: float) -> float:
    reader = Reader(chunk=chunk)
    try:
        file = reader.open(path)
        if file.size < 2 * EXPERT:
            raise OptionError(
                f"{path}: {file.size:,} bytes, expected {2 * EXPERT:,} to measure the disk with"
            )
        if not file.direct:
            raise OptionError(f"{path}: its file system has no direct reads, so the disk cannot be measured")
        memory = np.frombuffer(reserve(IN_FLIGHT * EXPERT, large=True), np.uint8)
        memory[::BLOCK] = 1  # so that every page exists
        places = random.Random()

        def submit(slot: int) -> int:
            offset = places.randrange(0, file.size - EXPERT, BLOCK)
            return reader.submit([Piece(file, offset, EXPERT, EXPERT, memory.ctypes.data + slot * EXPERT)])

        jobs = [submit(slot) for slot in range(IN_FLIGHT)]
        begin, done = time.perf_counter(), 0
        while time.perf_counter() - begin < seconds:
            reader.wait(jobs[done % IN_FLIGHT])
            jobs[done % IN_FLIGHT] = submit(done % IN_FLIGHT)
            done += 1
        return done * EXPERT / (time.perf_counter() - begin)
    finally:
        reader.close()
