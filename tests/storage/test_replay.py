"""Traces replayed."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.storage.cache import Cache
from penstock.storage.policies import POLICIES, make_policy
from penstock.storage.replay import OPTIMUM, belady, best_policy, curve, replay
from tests.storage.recorded import make_trace

EXPERTS = 4
Request = tuple[int, list[int]]
ids = st.sets(st.integers(0, EXPERTS - 1), min_size=1, max_size=3).map(sorted)
requests = st.lists(st.tuples(st.integers(0, 1), ids), max_size=30)
few = st.lists(st.tuples(st.integers(0, 1), ids), max_size=9)


@given(st.sampled_from(list(POLICIES)), st.integers(5, 40), requests)
def test_counters_are_those_of_the_cache(policy: str, capacity: int, wanted: list[Request]) -> None:
    sizes = [3, 5]
    found = replay(make_trace(wanted, sizes, EXPERTS), policy, capacity)
    cache = Cache(capacity, make_policy(policy, max(1, capacity // 4)), lambda key: sizes[key // EXPERTS])
    decisions = [
        d for block, ids in wanted for d in cache.request([EXPERTS * block + expert for expert in ids])
    ]
    missed = [decision.key // EXPERTS for decision in decisions if not decision.hit]
    assert found.misses == len(missed)
    assert found.hits == len(decisions) - len(missed)
    assert found.evictions == sum(len(decision.evicted) for decision in decisions)
    assert found.bytes_read == sum(sizes[block] for block in missed)
    assert found.block_misses == (missed.count(0), missed.count(1))
    assert found.misses - found.evictions == len(cache)


@given(st.integers(1, 9), requests)
def test_nobody_beats_the_optimum(capacity: int, wanted: list[Request]) -> None:
    trace = make_trace(wanted, [1, 1], EXPERTS)
    best = belady(trace, capacity)
    for name in POLICIES:
        assert replay(trace, name, capacity).hits <= best.hits
    assert best.hits + best.misses == len(trace.keys)


@given(st.integers(1, 5), few)
def test_the_optimum_against_trying_everything(capacity: int, wanted: list[Request]) -> None:
    trace = make_trace(wanted, [1, 1], EXPERTS)
    most = {frozenset[int](): 0}  # contents → most hits so far
    for keys in map(frozenset, trace.requests()):
        after: dict[frozenset[int], int] = {}
        for held, hits in most.items():
            hits += len(held & keys)
            # Its own keys stay, and as many others as fit; if not even its own fit, some of them.
            certain, rest = (keys, held - keys) if len(keys) <= capacity else (frozenset[int](), keys)
            for kept in combinations(sorted(rest), min(len(rest), capacity - len(certain))):
                contents = certain.union(kept)
                after[contents] = max(after.get(contents, 0), hits)
        most = after
    assert belady(trace, capacity).hits == max(most.values())


@given(requests)
def test_with_room_for_all_only_first_uses_miss(wanted: list[Request]) -> None:
    trace = make_trace(wanted, [3, 5], EXPERTS)
    for name, (result,) in curve(trace, [*POLICIES, OPTIMUM], [trace.header.total_bytes]).items():
        assert (result.policy, result.evictions) == (name, 0)
        assert result.misses == len(set(trace.keys.tolist()))


def test_a_loop_larger_than_the_cache() -> None:
    """LRU always gives up what comes next; the optimum keeps some and lets the others take turns."""
    trace = make_trace([(0, [n % 4]) for n in range(40)], [10], EXPERTS)
    assert replay(trace, "lru", 30).hits == 0
    assert belady(trace, 30).hits == 36 * 2 // 3


def test_the_best_policy_is_the_one_that_reads_least() -> None:
    loop = make_trace([(n % 2, [n // 2 % 3, 3]) for n in range(120)], [10, 10], EXPERTS)
    read = {name: replay(loop, name, 50).bytes_read for name in POLICIES}
    assert read[best_policy(loop, 50)] == min(read.values()) < read["lru"]
    same = make_trace([(0, [1])] * 5, [10], EXPERTS)
    assert best_policy(same, 10) == "lru"  # all are equal: the simplest


def test_curves() -> None:
    trace = make_trace([(0, [n % 3]) for n in range(12)], [10], EXPERTS)
    found = curve(trace, ["lru", OPTIMUM], [10, 20, 30])
    assert [[result.hits for result in row] for row in found.values()] == [[0, 0, 9], [0, 5, 9]]
    assert [result.capacity for result in found["lru"]] == [10, 20, 30]


def test_nothing_recorded() -> None:
    trace = make_trace([], [10], EXPERTS)
    assert replay(trace, "lru", 10).hit_rate == belady(trace, 10).hit_rate == 0


def test_a_cache_too_small_for_an_expert() -> None:
    with pytest.raises(ValueError, match="key 1 has 10 bytes, the cache holds 9"):
        replay(make_trace([(0, [1])], [10], EXPERTS), "lru", 9)
