"""Memory for experts: slots that are used again and again, and given back to the system when they no longer fit.

Experts of one kind have one size, so a slot that one leaves suits the next.  Where a model mixes kinds, each size has
a range of addresses of its own, and pages that a size no longer needs go back to the system before another size takes
more: the sum of all is what counts, and there is nothing to fragment.
"""

import mmap
from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.machine.pages import give_back, reserve

PAGE: Final = mmap.PAGESIZE
ROOM: Final = 256  # slots that an arena gets addresses for at a time


class Slot(NamedTuple):
    """Memory [size] in an arena."""

    memory: NDArray[np.uint8]
    address: int
    arena: mmap.mmap
    start: int


Pin = Callable[[NDArray[np.uint8]], bool]
Unpin = Callable[[NDArray[np.uint8]], None]


class Slots:
    """At most `limit` bytes in slots that are in use or kept for use."""

    def __init__(self, limit: int, pin: Pin | None = None, unpin: Unpin | None = None):
        """pin: makes a slot's memory one that a device copies from, before it is first used; unpin: and back"""
        self.limit, self._pin, self._unpin = limit, pin, unpin
        self.held = 0  # bytes of slots that are in use or whose pages are kept
        self._free: dict[int, list[Slot]] = {}  # by size: pages kept
        self._bare: dict[int, list[Slot]] = {}  # by size: addresses without pages

    def take(self, size: int) -> Slot:
        """A slot of `size` bytes, a whole number of pages."""
        free = self._free.get(size)
        if free:
            return free.pop()
        while self.held + size > self.limit and self._give_back_one():
            pass
        if self.held + size > self.limit:
            raise MemoryError(f"{size:,} bytes beyond the {self.held:,} of {self.limit:,} that experts hold")
        bare = self._bare.setdefault(size, [])
        if not bare:
            bare.extend(_arena(size))
        self.held += size
        slot = bare.pop()
        if self._pin is not None:
            self._pin(slot.memory)
        return slot

    def give(self, slot: Slot) -> None:
        """The slot is not used any more.  Its pages stay for the next taker, unless the limit has shrunk."""
        self._free.setdefault(slot.memory.size, []).append(slot)
        while self.held > self.limit and self._give_back_one():
            pass

    def resize(self, limit: int) -> None:
        self.limit = limit
        while self.held > self.limit and self._give_back_one():
            pass

    def _give_back_one(self) -> bool:
        for size, free in self._free.items():
            if free:
                slot = free.pop()
                if self._unpin is not None:
                    self._unpin(slot.memory)
                give_back(slot.arena, slot.start, size)
                self._bare.setdefault(size, []).append(slot)
                self.held -= size
                return True
        return False


def _arena(size: int) -> list[Slot]:
    """Addresses for more slots, the first to be used last in the list."""
    if size <= 0 or size % PAGE:
        raise ValueError(f"a slot of {size:,} bytes, expected a whole number of pages")
    arena = reserve(size * ROOM, large=True)
    whole = np.frombuffer(arena, dtype=np.uint8)
    base = whole.ctypes.data
    starts = range(0, size * ROOM, size)
    return [Slot(whole[at : at + size], base + at, arena, at) for at in reversed(starts)]
