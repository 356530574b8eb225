"""Two kinds of memory for attention state: a ring of recent rows, and rows that only ever grow."""

import mmap

import numpy as np
import torch
from torch import Tensor


class Ring:
    """The most recent rows of a series, addressed by absolute position.  storage: [capacity, width]

    New rows are staged first and become part of the ring with `commit`, so that a step that fails half-way
    leaves the ring as it was.
    """

    def __init__(self, capacity: int, width: int, dtype: torch.dtype):
        self.storage = torch.zeros(capacity, width, dtype=dtype)
        self._staged: tuple[int, Tensor] | None = None

    @property
    def capacity(self) -> int:
        return self.storage.shape[0]

    def _slots(self, start: int, stop: int) -> Tensor:
        return torch.arange(start, stop) % self.capacity

    def read(self, start: int, stop: int) -> Tensor:
        """A copy of rows [start, stop).  The caller knows which positions are still here."""
        return self.storage[self._slots(start, stop)]

    def stage(self, position: int, rows: Tensor) -> None:
        """Rows for `position` onwards; of a long run only the last `capacity` are kept."""
        skip = max(0, rows.shape[0] - self.capacity)
        self._staged = (position + skip, rows[skip:].to(self.storage.dtype, copy=True))

    def commit(self) -> None:
        if self._staged is not None:
            position, rows = self._staged
            self.storage[self._slots(position, position + rows.shape[0])] = rows
            self._staged = None

    def discard(self) -> None:
        self._staged = None

    def clone(self) -> "Ring":
        copy = Ring(self.capacity, self.storage.shape[1], self.storage.dtype)
        copy.storage.copy_(self.storage)
        return copy


class GrowingRows:
    """Rows 0, 1, 2 … up to `limit`.  storage: [limit, width]

    The whole range is reserved as address space at once and the kernel commits pages as rows are written, so
    growing never copies and memory follows the rows in use.  How many are live is the caller's knowledge.
    """

    def __init__(self, limit: int, width: int, dtype: torch.dtype):
        self.limit, self.width, self.dtype = limit, width, dtype
        nbytes = max(1, limit * width) * dtype.itemsize
        reserve = mmap.mmap(
            -1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
        )
        if hasattr(mmap, "MADV_NOHUGEPAGE"):
            # A huge page per series would charge a short session megabytes for kilobytes of rows.
            reserve.madvise(mmap.MADV_NOHUGEPAGE)
        flat = torch.from_numpy(np.frombuffer(reserve, dtype=np.uint8)).view(dtype)
        self.storage = flat[: limit * width].view(limit, width)

    def write(self, first: int, rows: Tensor) -> None:
        self.storage[first : first + rows.shape[0]] = rows.to(self.dtype)

    def view(self, count: int) -> Tensor:
        return self.storage[:count]

    def clone(self, live: int) -> "GrowingRows":
        copy = GrowingRows(self.limit, self.width, self.dtype)
        copy.write(0, self.view(live))
        return copy
