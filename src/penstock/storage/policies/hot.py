"""A hot set, and the rest by recency."""

from collections import OrderedDict
from collections.abc import Container

from penstock.storage.policies.counts import Counts
from penstock.storage.policies.least_used import LeastUsed
from penstock.storage.policies.policy import Key, Policy, first_free


class Hot(Policy):
    """The most used experts keep half of the slots; of the others, whoever was used longest ago goes.

    Counts fade and survive eviction, as in `Lfu`.  A use that lifts an expert above the least of the hot ones makes
    them change places.  The hot set is touched only when all others are pinned.
    """

    name = "hot"

    def __init__(self, slots: int):
        super().__init__(slots)
        self._counts = Counts(slots)
        self._hot = LeastUsed(self._counts)
        self._others: OrderedDict[Key, None] = OrderedDict()  # oldest first

    def hit(self, key: Key) -> None:
        self._counts.use(key)
        if key not in self._hot:
            self._others.move_to_end(key)
            self._try_to_heat(key)

    def add(self, key: Key) -> None:
        self._counts.use(key)
        self._others[key] = None
        self._try_to_heat(key)

    def remove(self, key: Key) -> None:
        if key in self._hot:
            self._hot.remove(key)
        else:
            del self._others[key]

    def victim(self, pinned: Container[Key]) -> Key | None:
        key = first_free(self._others, pinned)
        return self._hot.least(pinned) if key is None else key

    def resize(self, slots: int) -> None:
        super().resize(slots)
        self._counts.resize(slots)
        while len(self._hot) > slots // 2:
            self._cool()

    def _try_to_heat(self, key: Key) -> None:
        if len(self._hot) >= self.slots // 2:
            least = self._hot.least()
            if least is None or not self._counts.exceeds(key, least):
                return
            self._cool()
        del self._others[key]
        self._hot.add(key)

    def _cool(self) -> None:
        """The least used of the hot ones starts again among the others, as if just used."""
        key = self._hot.least()
        assert key is not None
        self._hot.remove(key)
        self._others[key] = None
