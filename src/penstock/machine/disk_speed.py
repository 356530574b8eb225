"""How fast a disk reads expert-sized pieces: measured once, and remembered for each device."""

import math
import mmap
import os
import random
import threading
import time
from pathlib import Path
from typing import Final, NamedTuple

from penstock.errors import OptionError, ReadError
from penstock.machine.disk import Disk, find_disk, forget, open_direct
from penstock.machine.notes import recall, remember

NOTES: Final = "disks"
PIECE: Final = 7 << 20  # about one expert of the published model
ALIGNMENT: Final = 4 << 20
SMALLEST_FILE: Final = 128 << 20  # less than that, and a disk's own cache answers
SECONDS: Final = 1.0
MOST_SECONDS: Final = 3.0
THREADS: Final = 8


class Measured(NamedTuple):
    """when: seconds since 1970; cached: remembered from an earlier measurement."""

    bytes_per_second: float
    when: float
    cached: bool


def measured(path: Path, again: bool = False) -> Measured:
    """The reading speed of the disk under `path`, remembered if it was measured before and not asked for `again`."""
    key = _key(find_disk(path))
    if not again and (known := _recall(key)) is not None:
        return known
    found = Measured(read_bandwidth(path), time.time(), cached=False)
    _remember(key, found)
    return found


def read_bandwidth(path: Path, seconds: float = SECONDS, threads: int = THREADS) -> float:
    """Bytes per second of random reads from a large file, past the page cache, several at a time.

    A disk that does not answer is waited for MOST_SECONDS at most.
    """
    size = path.stat().st_size if path.is_file() else 0
    if size < SMALLEST_FILE:
        raise OptionError(
            f"{path}: {size:,} bytes, expected a file of at least {SMALLEST_FILE:,} to measure a disk with"
        )
    finished: list[tuple[int, float]] = []  # bytes of a piece, and when it was there
    failures: list[OSError] = []
    try:
        fd, direct = open_direct(path)
    except OSError as error:
        raise ReadError(f"{path}: cannot be read: {error.strerror}") from None
    begin = time.perf_counter()

    def read_pieces() -> None:
        buffer = mmap.mmap(-1, PIECE)  # page-aligned, as direct reads need
        places = random.Random()
        try:
            while True:  # once at least, however late a busy machine lets the thread begin
                offset = places.randrange(0, size - PIECE + 1, ALIGNMENT)
                if not direct:
                    forget(fd, offset, PIECE)
                count = os.preadv(fd, [buffer], offset)  # lets the other threads run
                finished.append((count, time.perf_counter() - begin))
                if time.perf_counter() >= begin + seconds:
                    return
        except OSError as error:
            failures.append(error)

    readers = [threading.Thread(target=read_pieces, daemon=True) for _ in range(threads)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join(max(0.0, begin + MOST_SECONDS - time.perf_counter()))
    os.close(fd)  # whoever is late is inside its last read, and the kernel keeps the file for it
    if failures:
        raise ReadError(f"{path}: cannot be read: {failures[0].strerror}")
    pieces = list(finished)
    if not pieces:
        raise ReadError(f"{path}: no read of {PIECE:,} bytes came back within {MOST_SECONDS:.0f} seconds")
    return sum(count for count, _ in pieces) / max(when for _, when in pieces)


# ── what was measured before ──────────────────────────────────────────────────────────────────────────────────


def _key(disk: Disk) -> str:
    """Numbers of devices are given anew at every start, so the file system and the size have to agree too."""
    return f"{disk.device} {disk.filesystem} {disk.size}"


def _recall(key: str) -> Measured | None:
    match recall(NOTES).get(key):
        case {"bytes_per_second": float(speed), "when": float(when)}:
            good = math.isfinite(speed) and math.isfinite(when) and speed > 0
            return Measured(speed, when, cached=True) if good else None
        case _:
            return None


def _remember(key: str, found: Measured) -> None:
    remember(NOTES, key, {"bytes_per_second": found.bytes_per_second, "when": found.when})
