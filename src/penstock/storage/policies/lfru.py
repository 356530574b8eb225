"""Least frequently used among those not recently used."""

from collections import OrderedDict
from collections.abc import Container

from penstock.storage.policies.counts import Counts
from penstock.storage.policies.least_used import LeastUsed
from penstock.storage.policies.policy import Key, Policy, first_free

RECENT = 4  # one in so many slots is for the recently used


class Lfru(Policy):
    """The most recently used quarter is privileged; of the rest, whoever has the lowest count goes.

    As in the LFRU of Bilal and Kang (2017), a privileged part in order of recency stands before a part in order of
    frequency: every use makes a key privileged, and what recency lets go must then live by its count.  Theirs counts
    in windows of time; here counts fade and survive eviction, as in `Lfu`.
    """

    name = "lfru"

    def __init__(self, slots: int):
        super().__init__(slots)
        self._counts = Counts(slots)
        self._recent: OrderedDict[Key, None] = OrderedDict()  # oldest first
        self._rest = LeastUsed(self._counts)

    def hit(self, key: Key) -> None:
        if key in self._rest:
            self._rest.remove(key)
        self.add(key)

    def add(self, key: Key) -> None:
        self._counts.use(key)
        self._recent[key] = None
        self._recent.move_to_end(key)
        self._let_go()

    def remove(self, key: Key) -> None:
        if key in self._rest:
            self._rest.remove(key)
        else:
            del self._recent[key]

    def victim(self, pinned: Container[Key]) -> Key | None:
        key = self._rest.least(pinned)
        return first_free(self._recent, pinned) if key is None else key

    def resize(self, slots: int) -> None:
        super().resize(slots)
        self._counts.resize(slots)
        self._let_go()

    def _let_go(self) -> None:
        while len(self._recent) > self.slots // RECENT:
            self._rest.add(self._recent.popitem(last=False)[0])
