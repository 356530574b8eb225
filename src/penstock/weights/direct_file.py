"""Large files written once, from front to back, without going through the page cache."""

import mmap
import os
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from penstock.machine.disk import create_direct, sync_data

STAGE: Final = 8 << 20  # bytes per write


class DirectFile:
    """A file written past the page cache, which a model would only fill with what nobody reads soon.

    Where the file system has no direct writes, the same blocks go through the cache.  `keep`: bytes of a file that is
    there already, behind which writing goes on.
    """

    def __init__(self, path: Path, keep: int = 0):
        self.fd = create_direct(path, keep=keep > 0)
        self.staged = memoryview(mmap.mmap(-1, STAGE))  # page-aligned, as direct writes need
        self.size, self.used = keep, keep % mmap.PAGESIZE
        if self.used:  # the page that is to be filled up is written again
            with open(path, "rb") as file:
                file.seek(keep - self.used)
                self.staged[: self.used] = file.read(self.used)
        self.written = keep - self.used
        os.lseek(self.fd, self.written, os.SEEK_SET)

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

    def safe(self) -> int:
        """Bytes from the front on that would be there after a power failure."""
        sync_data(self.fd)
        return self.written

    def _flush(self) -> None:
        block = self.staged[: -(-self.used // mmap.PAGESIZE) * mmap.PAGESIZE]
        while block:
            block = block[os.write(self.fd, block) :]
        self.written, self.used = self.written + self.used, 0
