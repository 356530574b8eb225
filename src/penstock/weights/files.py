"""Read-only mapped files: bytes are paged in when touched and never copied into private memory."""

import mmap
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from penstock.errors import ModelFormatError

# What is no file, and cannot be mapped.
KINDS: Final = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


class MappedFile:
    """One file mapped for reading.  Views keep the mapping alive; there is nothing to close by hand.

    >>> MappedFile(Path("model.gguf")).view(0, 4).tobytes()  # doctest: +SKIP
    b'GGUF'
    """

    def __init__(self, path: Path):
        self.path = path
        try:
            kind = KINDS.get(stat.S_IFMT(os.stat(path).st_mode))
            if kind is not None:  # opening a pipe would wait for somebody to write to it
                raise ModelFormatError(f"{path}: expected a model file, found {kind}")
            with open(path, "rb") as handle:
                self.size = os.fstat(handle.fileno()).st_size
                if self.size == 0:
                    raise ModelFormatError(f"{path}: the file is empty")
                # PROT_READ on purpose: a private writable mapping of a file larger than memory would be
                # counted against the overcommit limit and refused.
                mapping = mmap.mmap(handle.fileno(), 0, prot=mmap.PROT_READ, flags=mmap.MAP_SHARED)
        except OSError as error:
            raise ModelFormatError(f"{path}: cannot be read: {error.strerror or error}") from None
        self._mapping = mapping
        self.bytes: NDArray[np.uint8] = np.frombuffer(mapping, dtype=np.uint8)

    def view(self, offset: int, nbytes: int) -> NDArray[np.uint8]:
        """`nbytes` bytes from `offset`, without copying."""
        return self.bytes[offset : offset + nbytes]

    def expect_all(self) -> None:
        """Everything will be used, again and again.  What is paged in from now on comes in pages of 2 MiB where the
        file system has them (ext4 since Linux 6.16, XFS, btrfs): weights then stream a third faster, because reading
        ahead need not stop every 4 KiB."""
        self._advise("MADV_HUGEPAGE")

    def expect_little(self) -> None:
        """Only a few bytes here and there will be used: what lies around them is not to be read along."""
        self._advise("MADV_RANDOM")

    def expect(self, offset: int, nbytes: int) -> None:
        """These bytes will be used at once: they are to be read together and not page after page."""
        start = offset // mmap.PAGESIZE * mmap.PAGESIZE
        with suppress(OSError):
            self._mapping.madvise(mmap.MADV_WILLNEED, start, offset + nbytes - start)

    def expect_nothing(self) -> None:
        """Nobody uses the file for now: its pages are no longer part of this process."""
        self._advise("MADV_DONTNEED")

    def _advise(self, name: str) -> None:
        if hasattr(mmap, name):
            with suppress(OSError):  # a kernel without it
                self._mapping.madvise(getattr(mmap, name))
