"""Least frequently used."""

from collections.abc import Container

from penstock.storage.policies.counts import Counts
from penstock.storage.policies.least_used import LeastUsed
from penstock.storage.policies.policy import Key, Policy


class Lfu(Policy):
    """Whoever has the lowest count goes, the longest unused of equals.

    Counts fade (see `Counts`) and survive eviction: in a cache smaller than what a token needs, everything would
    otherwise be gone before it could be counted twice.
    """

    name = "lfu"

    def __init__(self, slots: int):
        super().__init__(slots)
        self._counts = Counts(slots)
        self._residents = LeastUsed(self._counts)

    def hit(self, key: Key) -> None:
        self._counts.use(key)

    def add(self, key: Key) -> None:
        self._counts.use(key)
        self._residents.add(key)

    def remove(self, key: Key) -> None:
        self._residents.remove(key)

    def victim(self, pinned: Container[Key]) -> Key | None:
        return self._residents.least(pinned)

    def resize(self, slots: int) -> None:
        super().resize(slots)
        self._counts.resize(slots)
