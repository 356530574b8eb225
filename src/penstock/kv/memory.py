"""Two kinds of memory for attention state: a ring of recent rows, and rows that only ever grow."""

import mmap
from typing import Any

import numpy as np
import torch
from torch import Tensor


class Ring:
    """The most recent rows of a series, addressed by absolute position.  storage: [capacity, width]

    Rows of a step under way must not replace any that still count, because the step may fail.  A single row goes
    straight to its place, for which the ring has one place more than there are rows that count.  More rows wait in
    `fresh` and become part of the ring with `commit`.
    """

    def __init__(self, capacity: int, width: int, dtype: torch.dtype):
        self.storage = torch.zeros(capacity, width, dtype=dtype)
        self.capacity = capacity
        self.prepared: Any = None  # whatever form kernels want it in, made by them and kept here
        self.fresh: Tensor | None = None
        self._start = 0  # position of the first fresh row

    def _slots(self, start: int, stop: int) -> Tensor:
        return torch.arange(start, stop) % self.capacity

    def read(self, start: int, stop: int) -> Tensor:
        """A copy of rows [start, stop), fresh ones included.  The caller knows which are still here."""
        if self.fresh is None or stop <= self._start:
            return self.storage[self._slots(start, stop)]
        earlier = self.storage[self._slots(start, max(start, self._start))]
        return torch.cat((earlier, self.fresh[max(0, start - self._start) : stop - self._start]))

    def open(self, position: int, count: int) -> Tensor | None:
        """Memory for rows of positions [position, position + count), to be filled: [count, width], or None: they go
        to their places in the ring."""
        if count == 1:
            self.fresh = None
        else:
            self.fresh, self._start = self.storage.new_empty(count, self.storage.shape[1]), position
        return self.fresh

    def write(self, position: int, rows: Tensor) -> None:
        """`open`, and fills it."""
        if rows.shape[0] == 1:
            self.open(position, 1)
            self.storage[position % self.capacity] = rows[0]
        else:
            self.stage(position, rows)

    def stage(self, position: int, rows: Tensor) -> None:
        """Rows for `position` onwards, kept out of the ring whatever their number; of a long run only the last."""
        skip = max(0, rows.shape[0] - self.capacity)
        self._start, self.fresh = position + skip, rows[skip:].to(self.storage.dtype, copy=True)

    def trim(self) -> None:
        """Fresh rows that will not fit the ring have been used and may go."""
        if self.fresh is not None and (skip := self.fresh.shape[0] - self.capacity) > 0:
            self._start, self.fresh = self._start + skip, self.fresh[skip:].clone()

    def commit(self) -> None:
        if self.fresh is not None:
            self.trim()
            self.storage[self._slots(self._start, self._start + self.fresh.shape[0])] = self.fresh
            self.fresh = None

    def discard(self) -> None:
        self.fresh = None

    def copy_from(self, other: "Ring") -> None:
        self.storage.copy_(other.storage)


class GrowingRows:
    """Rows 0, 1, 2 … up to `limit`.  storage: [limit, width]

    The whole range is reserved as address space at once and the kernel commits pages as rows are written, so
    growing never copies and memory follows the rows in use.  How many are live is the caller's knowledge.
    """

    def __init__(self, limit: int, width: int, dtype: torch.dtype):
        self.limit, self.width, self.dtype = limit, width, dtype
        self.prepared: Any = None  # whatever form kernels want it in, made by them and kept here
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
