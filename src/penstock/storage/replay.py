"""A recorded trace run again through the cache, with any policy and any size: what each would have read."""

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import pairwise
from typing import Final, cast

import numpy as np

from penstock.storage.cache import make_cache
from penstock.storage.policies import POLICIES, Key
from penstock.storage.trace import Trace

OPTIMUM: Final = "belady"


@dataclass(frozen=True)
class Replayed:
    """What a policy made of a trace in `capacity` bytes."""

    policy: str
    capacity: int
    evictions: int
    bytes_read: int
    block_hits: tuple[int, ...]  # by block number
    block_misses: tuple[int, ...]

    @property
    def hits(self) -> int:
        return sum(self.block_hits)

    @property
    def misses(self) -> int:
        return sum(self.block_misses)

    @property
    def hit_rate(self) -> float:
        return self.hits / max(1, self.hits + self.misses)


def replay(trace: Trace, policy: str, capacity: int) -> Replayed:
    """What the engine would have counted, exactly: the same cache is asked for the same keys."""
    header = trace.header
    cache = make_cache(policy, capacity, header.block_bytes, header.experts)
    tally = _Tally(trace)
    for keys in trace.requests():
        for decision in cache.request(keys):
            tally.count(decision.key, decision.hit)
            tally.evictions += len(decision.evicted)
    return tally.result(policy, capacity)


def belady(trace: Trace, capacity: int) -> Replayed:
    """The most hits that any policy could have: whoever is needed farthest in the future goes.

    The keys of a request are pinned while it is under way, as in the cache; from one that does not fit, those
    needed soonest stay.  With experts of one size nobody can do better.  With several sizes it is a good estimate
    and no more: that optimum is hard to find.
    """
    block_bytes, experts = trace.header.block_bytes, trace.header.experts
    starts, next_uses = trace.starts.tolist(), _next_uses(trace)
    tally = _Tally(trace)
    needed: dict[Key, int] = {}  # resident → request that needs it next
    farthest: list[tuple[int, Key]] = []  # heap of (−next request, key); void where `needed` says otherwise
    used = 0
    for (start, stop), keys in zip(pairwise(starts), trace.requests(), strict=True):
        for key, next_use in zip(keys, next_uses[start:stop], strict=True):
            tally.count(key, hit=key in needed)
            if key not in needed:
                used += block_bytes[key // experts]
            needed[key] = next_use  # voids its entry, so only others can go
        own = [(-needed[key], key) for key in keys]
        while used > capacity:
            if not farthest:
                farthest, own = own, []
                heapify(farthest)
            use, key = heappop(farthest)
            if needed.get(key) == -use:
                del needed[key]
                used -= block_bytes[key // experts]
                tally.evictions += 1
        for entry in own:
            heappush(farthest, entry)
    return tally.result(OPTIMUM, capacity)


def _next_uses(trace: Trace) -> list[int]:
    """For each access the number of the next request with the same key; past the last request if there is none."""
    requests = np.repeat(np.arange(len(trace.steps)), np.diff(trace.starts))  # [accesses]
    order = np.argsort(trace.keys, kind="stable")  # by key, then in time
    following = np.full(len(order), len(trace.steps))
    same = trace.keys[order[:-1]] == trace.keys[order[1:]]
    following[:-1][same] = requests[order[1:]][same]
    next_uses = np.empty_like(following)
    next_uses[order] = following
    return cast(list[int], next_uses.tolist())


def curve(
    trace: Trace, policies: Sequence[str], capacities: Sequence[int]
) -> dict[str, tuple[Replayed, ...]]:
    """Each policy at each size; `OPTIMUM` may be among them."""
    return {
        policy: tuple(
            belady(trace, capacity) if policy == OPTIMUM else replay(trace, policy, capacity)
            for capacity in capacities
        )
        for policy in policies
    }


def best_policy(trace: Trace, capacity: int) -> str:
    """The policy that would have read the fewest bytes; of equals the simplest."""
    return min(POLICIES, key=lambda name: replay(trace, name, capacity).bytes_read)


class _Tally:
    """Hits and misses by block, while a trace runs."""

    def __init__(self, trace: Trace):
        self._header = trace.header
        blocks = len(trace.header.expert_bytes)
        self.hits, self.misses, self.evictions = [0] * blocks, [0] * blocks, 0

    def count(self, key: Key, hit: bool) -> None:
        (self.hits if hit else self.misses)[key // self._header.experts] += 1

    def result(self, policy: str, capacity: int) -> Replayed:
        read = sum(
            count * nbytes for count, nbytes in zip(self.misses, self._header.block_bytes, strict=True)
        )
        return Replayed(policy, capacity, self.evictions, read, tuple(self.hits), tuple(self.misses))
