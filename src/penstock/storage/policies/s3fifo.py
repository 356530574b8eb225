"""S3-FIFO: three queues that nobody is moved within."""

from collections import OrderedDict
from collections.abc import Container

from penstock.storage.policies.policy import Key, Policy, first_free

SMALL = 10  # one in so many slots is for newcomers
MOST_USES = 3
PROMOTED = 2  # uses after which a newcomer may stay

Queue = OrderedDict[Key, int]  # uses since a key came in or was last spared; first in first


class S3Fifo(Policy):
    """Newcomers pass through a small queue, the proven ones through a main queue; a ghost queue remembers who left.

    After Yang and others (SOSP 2023).  At the end of the small queue a key that was used twice moves on to the main
    queue, another goes.  At the end of the main queue a key that was used starts again with one use less.  A key
    that comes back while its ghost is there goes straight to the main queue.  The paper moves keys while it looks
    for a victim; here they move when something came or went, so that asking changes nothing.
    """

    name = "s3fifo"

    def __init__(self, slots: int):
        super().__init__(slots)
        self._small: Queue = OrderedDict()
        self._main: Queue = OrderedDict()
        self._ghosts: OrderedDict[Key, None] = OrderedDict()

    def hit(self, key: Key) -> None:
        queue = self._small if key in self._small else self._main
        queue[key] = min(queue[key] + 1, MOST_USES)

    def add(self, key: Key) -> None:
        queue = self._small
        if key in self._ghosts:
            del self._ghosts[key]
            queue = self._main
        queue[key] = 0
        self._move_on()

    def remove(self, key: Key) -> None:
        if key in self._small:
            del self._small[key]
            self._ghosts[key] = None
            while len(self._ghosts) > self.slots:
                self._ghosts.popitem(last=False)
        else:
            del self._main[key]
        self._move_on()

    def victim(self, pinned: Container[Key]) -> Key | None:
        if self._crowded():
            for key, uses in self._small.items():
                if uses < PROMOTED and key not in pinned:
                    return key
        chosen, fewest = None, MOST_USES + 1
        for key, uses in self._main.items():
            if uses < fewest and key not in pinned:
                if uses == 0:
                    return key
                chosen, fewest = key, uses
        return first_free(self._small, pinned) if chosen is None else chosen

    def _crowded(self) -> bool:
        """Whether newcomers hold more than their share."""
        return SMALL * len(self._small) > self.slots

    def _move_on(self) -> None:
        while self._crowded():
            key, uses = next(iter(self._small.items()))
            if uses < PROMOTED:
                break
            del self._small[key]
            self._main[key] = 0
        while self._main:
            key, uses = next(iter(self._main.items()))
            if uses == 0:
                break
            self._main[key] = uses - 1
            self._main.move_to_end(key)
