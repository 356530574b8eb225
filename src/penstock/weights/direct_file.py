"""Large files written once, from front to back, without going through the page cache."""

import mmap
import os
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from penstock.machine.disk import create_direct

STAGE: Final = 8 << 20  # bytes per write


class DirectFile:
    """A file written past the page cache, which a model would only fill with what nobody reads soon.

    Where the file system has no direct writes, the same blocks go through the cache.
    """

    def __init__(self, path: Path):
        self.fd = create_direct(path)
        self.staged = memoryview(mmap.mmap(-1, STAGE))  # page-aligned, as direct writes need
        self.used = self.size = 0

    def __enter__(self) -> "DirectFile":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self._flush()
                os.ftruncate(self.fd, self.size)  # the last block was padded
                os.fsync(self.fd)
        finally:
            os.close(self.fd)

    def write(self, data: bytes | NDArray[np.uint8]) -> None:
        view = memoryview(data if isinstance(data, bytes) else np.ascontiguousarray(data).data).cast("B")
        self.size += len(view)
        while view:
            taken = min(len(view), STAGE - self.used)
            self.staged[self.used : self.used + taken] = view[:taken]
            self.used, view = self.used + taken, view[taken:]
            if self.used == STAGE:
                self._flush()

    def _flush(self) -> None:
        block = self.staged[: -(-self.used // mmap.PAGESIZE) * mmap.PAGESIZE]
        while block:
            block = block[os.write(self.fd, block) :]
        self.used = 0
