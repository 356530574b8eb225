"""Which experts are in memory: the bookkeeping, without the memory.  The engine and the replay of traces share it."""

from collections import deque
from collections.abc import Callable, Generator, KeysView, Sequence
from typing import NamedTuple

from penstock.storage.policies import Key, Policy, make_policy


class Decision(NamedTuple):
    """What happens to one key of a request.

    `evicted` left to make room, in this order.  Those of them that the same request had already handed out are in
    `after` too: their users must be done before this decision's room is taken.
    """

    key: Key
    hit: bool
    evicted: tuple[Key, ...]
    after: tuple[Key, ...]


class Cache:
    """Experts of `size_of(key)` bytes each (always the same for a key), together at most `capacity` bytes.

    Every outcome follows from the requests alone, never from timing, so a replay finds what the engine found.
    One request at a time: a request begins when the one before it is exhausted or closed.

    >>> from penstock.storage.policies import make_policy
    >>> cache = Cache(20, make_policy("lru", 2), lambda key: 10)
    >>> [decision.hit for decision in cache.request([3, 5])]
    [False, False]
    >>> list(cache.request([5, 7]))
    [Decision(key=5, hit=True, evicted=(), after=()), Decision(key=7, hit=False, evicted=(3,), after=())]
    """

    def __init__(self, capacity: int, policy: Policy, size_of: Callable[[Key], int]):
        _check(capacity)
        self.policy, self.size_of = policy, size_of
        self._capacity, self._used = capacity, 0
        self._slot_bytes = capacity / policy.slots
        self._sizes: dict[Key, int] = {}
        self._pinned: set[Key] = set()  # of the request under way
        self._busy = False

    @property
    def capacity(self) -> int:
        return self._capacity

    @property
    def used(self) -> int:
        return self._used

    def __contains__(self, key: Key) -> bool:
        return key in self._sizes

    def __len__(self) -> int:
        return len(self._sizes)

    def keys(self) -> KeysView[Key]:
        return self._sizes.keys()

    def request(self, keys: Sequence[Key]) -> Generator[Decision, None, None]:
        """A layer needs these keys together; they are distinct and ascend.  Each is decided once:

        1. Of the keys that are present, the first ones are hits, as many as leave room for all the missing ones, or
           at least for half of the capacity and for the largest of them.
        2. The others follow in ascending order: hits if they are still present, else misses, for which the policy's
           victims go until there is room.

        What has been decided is pinned until the end, so a request that fits has all its keys together.  In one
        that does not fit, when nobody else is left to go, the oldest miss of step 2 is released, or its oldest hit
        if no miss is left: see `Decision.after`.  All keys below a released one have been decided by then, so
        whoever uses keys in ascending order can always get there.
        """
        sizes = [self.size_of(key) for key in keys]
        for key, size in zip(keys, sizes, strict=True):
            if size > self._capacity:
                raise ValueError(f"key {key} has {size:,} bytes, the cache holds {self._capacity:,}")
        if list(keys) != sorted(set(keys)):
            raise ValueError(f"the keys of a request must ascend, found {list(keys)}")
        return self._decide(keys, sizes)

    def _decide(self, keys: Sequence[Key], sizes: Sequence[int]) -> Generator[Decision, None, None]:
        self._begin()
        try:
            firsts = self._first_hits(keys, sizes)
            self._pinned.update(firsts)
            for key in firsts:
                self.policy.hit(key)
                yield Decision(key, True, (), ())
            decided = set(firsts)
            hits, misses = deque[Key](), deque[Key]()  # of step 2, oldest first
            for key, size in zip(keys, sizes, strict=True):
                if key in decided:
                    continue
                if key in self._sizes:
                    hits.append(key)
                    self._pinned.add(key)
                    self.policy.hit(key)
                    yield Decision(key, True, (), ())
                else:
                    evicted, after = self._make_room(size, misses, hits)
                    misses.append(key)
                    self._pinned.add(key)
                    self._sizes[key] = size
                    self._used += size
                    self.policy.add(key)
                    yield Decision(key, False, evicted, after)
        finally:
            self._pinned.clear()
            self._busy = False

    def _begin(self) -> None:
        if self._busy:
            raise RuntimeError("a request is under way")
        self._busy = True

    def _first_hits(self, keys: Sequence[Key], sizes: Sequence[int]) -> list[Key]:
        """Step 1: present keys that stay whatever the missing ones need."""
        missing = [size for key, size in zip(keys, sizes, strict=True) if key not in self._sizes]
        room = max(min(sum(missing), self._capacity // 2), max(missing, default=0))
        left = self._capacity - room
        firsts = []
        for key, size in zip(keys, sizes, strict=True):
            if key in self._sizes:
                left -= size
                if left < 0:
                    break
                firsts.append(key)
        return firsts

    def _make_room(
        self, size: int, misses: deque[Key], hits: deque[Key]
    ) -> tuple[tuple[Key, ...], tuple[Key, ...]]:
        """Evicts until `size` bytes fit: who went, and who of them had to be released first."""
        evicted, released = [], []
        while self._used + size > self._capacity:
            victim = self.policy.victim(self._pinned)
            if victim is None:
                victim = (misses or hits).popleft()
                if victim not in self._pinned:
                    continue  # it was dropped
                self._pinned.remove(victim)
                released.append(victim)
            self._forget(victim)
            evicted.append(victim)
        return tuple(evicted), tuple(released)

    def drop(self, key: Key) -> None:
        """Forgets a key, if it is there, because its bytes could not be read; also while a request is under way."""
        self._pinned.discard(key)
        if key in self._sizes:
            self._forget(key)

    def resize(self, capacity: int) -> list[Key]:
        """Changes the capacity between requests; who had to go."""
        _check(capacity)
        if self._busy:
            raise RuntimeError("a request is under way")
        self.policy.resize(max(1, int(capacity / self._slot_bytes)))
        self._capacity = capacity
        evicted = []
        while self._used > self._capacity:
            victim = self.policy.victim(())
            assert victim is not None
            self._forget(victim)
            evicted.append(victim)
        return evicted

    def _forget(self, key: Key) -> None:
        self._used -= self._sizes.pop(key)
        self.policy.remove(key)


def _check(capacity: int) -> None:
    if capacity < 1:
        raise ValueError(f"the capacity is {capacity:,} bytes, expected at least 1")


def make_cache(policy: str, capacity: int, expert_bytes: Sequence[int], experts: int) -> Cache:
    """A cache for a model whose block n has `experts` experts of `expert_bytes[n]` bytes."""
    slots = capacity * len(expert_bytes) // sum(expert_bytes)
    return Cache(capacity, make_policy(policy, max(1, slots)), lambda key: expert_bytes[key // experts])
