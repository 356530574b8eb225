"""The cache's bookkeeping."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.storage.cache import Cache, Decision, make_cache
from penstock.storage.policies import POLICIES, Key, make_policy

names = st.sampled_from(list(POLICIES))
requests = st.lists(st.sets(st.integers(0, 11), min_size=1, max_size=9).map(sorted), max_size=25)
SIZES = [1, 1, 1, 2, 2, 2, 3, 3, 4, 5, 6, 7]  # bytes, by key


def make(policy: str, capacity: int, size_of: Callable[[Key], int] = SIZES.__getitem__) -> Cache:
    return Cache(capacity, make_policy(policy, max(1, capacity // 3)), size_of)


@given(names, st.integers(7, 30), requests)
def test_every_request_keeps_the_rules(policy: str, capacity: int, asked: list[list[Key]]) -> None:
    cache = make(policy, capacity)
    for keys in asked:
        before = set(cache.keys())
        decided: list[Key] = []
        released: set[Key] = set()
        for decision in cache.request(keys):
            in_use = set(decided) - released
            assert decision.key not in decided
            assert decision.key in cache
            assert cache.used == sum(map(SIZES.__getitem__, cache.keys())) <= capacity
            assert not (decision.hit and decision.evicted)
            # Of what this request uses, only what it has released goes, and exactly that.
            assert set(decision.evicted) & in_use == set(decision.after)
            if decision.after:
                below = [key for key in keys if key <= max(decision.after)]
                assert set(below) <= set(decided)  # so that ascending users can get there
            released.update(decision.after)
            decided.append(decision.key)
        assert sorted(decided) == keys
        assert set(decided) - released <= set(cache.keys())
        if sum(SIZES[key] for key in keys) <= capacity:
            assert not released
        kept = before & set(cache.keys())
        assert kept | set(keys) >= set(cache.keys())


@given(names, st.integers(7, 30), requests)
def test_what_is_there_and_fits_is_a_hit(policy: str, capacity: int, asked: list[list[Key]]) -> None:
    cache = make(policy, capacity)
    for keys in asked:
        fits = sum(SIZES[key] for key in keys) <= capacity
        present = [key for key in keys if key in cache]
        hits = [decision.key for decision in cache.request(keys) if decision.hit]
        assert hits == present if fits else set(hits) <= set(present)


@given(st.integers(1, 10), requests)
def test_lru_against_a_list(slots: int, asked: list[list[Key]]) -> None:
    """Keys of size 1 in a list, the oldest use first: the rules of `Cache.request` written plainly."""
    cache = make("lru", slots, lambda _: 1)
    order: list[Key] = []
    for keys in asked:
        expected = []
        missing = [key for key in keys if key not in order]
        room = max(min(len(missing), slots // 2), min(1, len(missing)))
        firsts = [key for key in keys if key in order][: slots - room]
        pinned = set(firsts)
        passing_misses: list[Key] = []
        passing_hits: list[Key] = []
        for key in firsts + [key for key in keys if key not in firsts]:
            hit = key in order
            evicted: tuple[Key, ...] = ()
            after: tuple[Key, ...] = ()
            if hit:
                order.remove(key)
                if key not in firsts:
                    passing_hits.append(key)
            else:
                if len(order) == slots:
                    free = [other for other in order if other not in pinned]
                    if free:
                        gone = free[0]
                    else:
                        gone = (passing_misses or passing_hits).pop(0)
                        after = (gone,)
                    order.remove(gone)
                    evicted = (gone,)
                passing_misses.append(key)
            pinned.add(key)
            order.append(key)
            expected.append(Decision(key, hit, evicted, after))
        assert list(cache.request(keys)) == expected
        assert sorted(cache.keys()) == sorted(order)


@given(names, st.integers(7, 30), requests, st.data())
def test_a_closed_request_leaves_no_pins(
    policy: str, capacity: int, asked: list[list[Key]], data: st.DataObject
) -> None:
    cache = make(policy, capacity)
    for keys in asked:
        decisions = cache.request(keys)
        for _ in range(data.draw(st.integers(0, len(keys)))):
            next(decisions)
        decisions.close()
        (largest,) = cache.request([11])  # in the smallest cache everybody else has to go for it
        assert largest.after == ()
        assert cache.used <= capacity


@given(names, st.integers(7, 30), requests, st.sets(st.integers(0, 60)))
def test_bytes_that_could_not_be_read(
    policy: str, capacity: int, asked: list[list[Key]], broken: set[int]
) -> None:
    cache = make(policy, capacity)
    count = 0
    for keys in asked:
        decided = []
        for decision in cache.request(keys):
            decided.append(decision.key)
            assert cache.used <= capacity
            if not decision.hit and count in broken:
                cache.drop(decision.key)
                assert decision.key not in cache
            count += 1
        assert sorted(decided) == keys
    assert cache.used == sum(map(SIZES.__getitem__, cache.keys()))


def test_a_key_that_is_gone_may_be_dropped() -> None:
    cache = make("lru", 7)
    list(cache.request([0, 1]))
    cache.drop(1)
    cache.drop(1)
    assert set(cache.keys()) == {0}


def test_too_many_for_the_room() -> None:
    """Four slots, of which two go to hits: the missing ones take turns in the other two."""
    cache = make("lru", 4, lambda _: 1)
    list(cache.request([1, 3, 5, 7]))
    assert list(cache.request([0, 1, 2, 3, 4, 5])) == [
        Decision(1, True, (), ()),
        Decision(3, True, (), ()),
        Decision(0, False, (5,), ()),
        Decision(2, False, (7,), ()),
        Decision(4, False, (0,), (0,)),
        Decision(5, False, (2,), (2,)),
    ]


def test_late_hits_make_room_when_no_miss_is_left() -> None:
    cache = make("lru", 4, lambda _: 1)
    list(cache.request([1, 2, 3, 4]))
    *hits, first, second = cache.request([1, 2, 3, 4, 8, 9])
    assert all(hit.hit for hit in hits)
    assert (first.evicted, first.after) == ((3,), (3,))
    assert (second.evicted, second.after) == ((8,), (8,))


def test_a_large_key_finds_room_beside_the_first_hits() -> None:
    sizes = {1: 2, 2: 2, 3: 2, 9: 8}
    cache = make("lru", 10, sizes.__getitem__)
    list(cache.request([1, 2, 3]))
    decisions = list(cache.request([1, 2, 9]))
    assert decisions == [
        Decision(1, True, (), ()),
        Decision(2, True, (), ()),
        Decision(9, False, (3, 2), (2,)),
    ]


def test_shrinking_and_growing() -> None:
    cache = make("lru", 12, lambda _: 3)
    list(cache.request([1, 2, 3, 4]))
    assert cache.policy.slots == 4
    assert cache.resize(7) == [1, 2]
    assert (cache.used, cache.capacity, cache.policy.slots) == (6, 7, 2)
    for _ in range(50):  # nothing is lost to rounding
        cache.resize(11)
        cache.resize(12)
    assert cache.policy.slots == 4
    assert set(cache.keys()) == {3, 4}


def test_one_request_at_a_time() -> None:
    cache = make("lru", 7)
    first, second = cache.request([1, 2]), cache.request([2, 3])
    next(first)
    with pytest.raises(RuntimeError, match="under way"):
        next(second)
    with pytest.raises(RuntimeError, match="under way"):
        cache.resize(10)
    assert next(first).key == 2  # and is not disturbed
    first.close()
    assert [decision.hit for decision in cache.request([2, 3])] == [True, False]


def test_impossible_requests_change_nothing() -> None:
    cache = make("lru", 6)
    list(cache.request([0, 1]))
    with pytest.raises(ValueError, match="key 11 has 7 bytes, the cache holds 6"):
        cache.request([0, 11])
    for keys in ([1, 0], [1, 1]):
        with pytest.raises(ValueError, match="must ascend"):
            cache.request(keys)
    with pytest.raises(ValueError, match="the capacity is 0 bytes"):
        cache.resize(0)
    with pytest.raises(ValueError, match="the capacity is -3 bytes"):
        make("lru", -3)
    assert set(cache.keys()) == {0, 1}


def test_a_cache_for_a_model() -> None:
    cache = make_cache("lru", 50, [10, 30], experts=4)
    assert cache.policy.slots == 2
    assert [cache.size_of(key) for key in (0, 3, 4, 7)] == [10, 10, 30, 30]
