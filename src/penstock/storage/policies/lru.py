"""Least recently used."""

from collections import OrderedDict
from collections.abc import Container

from penstock.storage.policies.policy import Key, Policy, first_free


class Lru(Policy):
    """Whoever was used longest ago goes."""

    name = "lru"

    def __init__(self, slots: int):
        super().__init__(slots)
        self._order: OrderedDict[Key, None] = OrderedDict()  # oldest first

    def hit(self, key: Key) -> None:
        self._order.move_to_end(key)

    def add(self, key: Key) -> None:
        self._order[key] = None

    def remove(self, key: Key) -> None:
        del self._order[key]

    def victim(self, pinned: Container[Key]) -> Key | None:
        return first_free(self._order, pinned)
