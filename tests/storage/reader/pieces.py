"""Pieces of a file with known bytes, and a read that is held up."""

import errno
import mmap
import os
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from penstock.storage.reader import BLOCK, NO_FAULT, STALL, OpenFile, Piece, Reader

SIZE = 300_007  # not whole blocks


CONTENT = np.random.default_rng(0).integers(0, 256, SIZE, dtype=np.uint8)


UNTOUCHED = 0xA5


PATIENCE_S = 300  # for what takes milliseconds on an idle machine


def memory(nbytes: int) -> NDArray[np.uint8]:
    """Page-aligned bytes [nbytes]."""
    made = np.frombuffer(mmap.mmap(-1, max(1, nbytes)), dtype=np.uint8)[:nbytes]
    made[:] = UNTOUCHED
    return made


SCRATCH = memory(8 * BLOCK)  # for bytes that nobody looks at


def blocks(file: OpenFile, first: int, count: int, to: NDArray[np.uint8] = SCRATCH) -> Piece:
    """Whole blocks of the file, as far as it goes."""
    offset, length = first * BLOCK, count * BLOCK
    assert length <= to.size
    return Piece(file, offset, length, min(length, SIZE - offset), to.ctypes.data)


def holds(found: NDArray[np.uint8], offset: int) -> bool:
    return bool((found == CONTENT[offset : offset + found.size]).all())


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


def refuse_direct(patch: pytest.MonkeyPatch) -> None:
    """From now on files are opened as on a file system without direct reads."""
    original = os.open

    def refuse(path: Path, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "Invalid argument")
        return original(path, flags, mode)

    patch.setattr(os, "open", refuse)


def still_reads(reader: Reader, file: OpenFile) -> bool:
    reader.inject(NO_FAULT, file)
    to = memory(2 * BLOCK)
    reader.wait(reader.submit([blocks(file, 0, 2, to)]))
    return holds(to, 0)


class Held:
    """The reader's only thread, in the middle of a read."""

    def __init__(self, reader: Reader, file: OpenFile, count: int = 1, urgent: bool = True):
        self.reader, self.to = reader, memory(count * BLOCK)
        reader.inject(STALL, file)
        self.job = reader.submit([blocks(file, 0, count, self.to)], urgent)
        until(lambda: reader.stats()["in_flight"] == 1)
