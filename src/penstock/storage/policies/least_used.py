"""A set of keys that knows its least used one."""

from collections.abc import Container
from heapq import heapify, heappop, heappush, heapreplace

from penstock.storage.policies.counts import Counts, Rank
from penstock.storage.policies.policy import Key


class LeastUsed:
    """Keys in a heap by their rank in `counts`.

    Ranks only rise, so a use need not touch the heap: an entry is brought up to date when it comes to the top.
    """

    def __init__(self, counts: Counts):
        self._counts = counts
        self._entered: dict[Key, Rank] = {}  # the rank of each key's entry; entries with another one are void
        self._heap: list[tuple[Rank, Key]] = []
        self._aside: list[
            tuple[Rank, Key]
        ] = []  # were at the top while pinned; next time nobody pops them again

    def __contains__(self, key: Key) -> bool:
        return key in self._entered

    def __len__(self) -> int:
        return len(self._entered)

    def add(self, key: Key) -> None:
        self._entered[key] = rank = self._counts.rank(key)
        heappush(self._heap, (rank, key))

    def remove(self, key: Key) -> None:
        del self._entered[key]
        if len(self._heap) + len(self._aside) > 2 * len(self._entered) + 64:  # mostly void
            self._heap = [(rank, key) for key, rank in self._entered.items()]
            self._aside = []
            heapify(self._heap)

    def least(self, pinned: Container[Key] = ()) -> Key | None:
        """The least used key that is not pinned, or None."""
        self._return_unpinned(pinned)
        heap, entered = self._heap, self._entered
        while heap:
            rank, key = heap[0]
            if entered.get(key) != rank:
                heappop(heap)
            elif (risen := self._counts.rank(key)) != rank:
                entered[key] = risen
                heapreplace(heap, (risen, key))
            elif key in pinned:
                self._aside.append(heappop(heap))
            else:
                return key
        return None

    def _return_unpinned(self, pinned: Container[Key]) -> None:
        aside, self._aside = self._aside, []
        for entry in aside:
            if entry[1] in pinned:
                self._aside.append(entry)
            else:
                heappush(self._heap, entry)
