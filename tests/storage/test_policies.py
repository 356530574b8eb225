"""Who has to go."""

import pickle
from collections.abc import Container, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import OptionError
from penstock.storage.policies import POLICIES, Key, Policy, make_policy
from penstock.storage.policies.counts import HALVED_AFTER
from penstock.storage.policies.lfru import RECENT

names = st.sampled_from(list(POLICIES))
uses = st.lists(st.integers(0, 9), max_size=150)  # keys, in the order of their use
pins = st.sets(st.integers(0, 9), max_size=3)


def feed(policy: Policy, keys: list[Key], slots: int) -> Iterator[Key]:
    """Uses keys one by one, in a cache of `slots` keys; who had to go."""
    residents: set[Key] = set()
    for key in keys:
        if key in residents:
            policy.hit(key)
            continue
        if len(residents) >= slots:
            victim = policy.victim(())
            assert victim is not None
            policy.remove(victim)
            residents.remove(victim)
            yield victim
        policy.add(key)
        residents.add(key)


@given(names, uses, st.integers(1, 6), pins)
def test_a_victim_is_resident_and_not_pinned(
    name: str, keys: list[Key], slots: int, pinned: set[Key]
) -> None:
    policy = make_policy(name, slots)
    residents: set[Key] = set()
    for key in keys:
        free = residents - pinned
        victim = policy.victim(pinned)
        assert victim in free if free else victim is None
        if key in residents and key % 3 == 0 and victim is not None:
            policy.remove(victim)
            residents.remove(victim)
        elif key in residents:
            policy.hit(key)
        else:
            policy.add(key)
            residents.add(key)


@given(names, uses, st.integers(1, 6), st.lists(pins, min_size=1, max_size=4))
def test_asking_changes_nothing(name: str, keys: list[Key], slots: int, questions: list[set[Key]]) -> None:
    class Curious(Policy):
        """Asks around before everything it does."""

        def __init__(self, policy: Policy):
            self.policy = policy

        def hit(self, key: Key) -> None:
            self._ask()
            self.policy.hit(key)

        def add(self, key: Key) -> None:
            self._ask()
            self.policy.add(key)

        def remove(self, key: Key) -> None:
            self._ask()
            self.policy.remove(key)

        def victim(self, pinned: Container[Key]) -> Key | None:
            self._ask()
            return self.policy.victim(pinned)

        def _ask(self) -> None:
            for pinned in questions:
                self.policy.victim(pinned)

    asked = feed(Curious(make_policy(name, slots)), keys, slots)
    assert list(asked) == list(feed(make_policy(name, slots), keys, slots))


@given(names, uses, st.integers(1, 8), st.integers(1, 8))
def test_resizing_between(name: str, keys: list[Key], before: int, after: int) -> None:
    policy = make_policy(name, before)
    residents = set(keys[:8])
    for key in sorted(residents):
        policy.add(key)
    policy.resize(after)
    assert policy.slots == after
    gone = []
    while (victim := policy.victim(())) is not None:
        gone.append(victim)
        policy.remove(victim)
    assert sorted(gone) == sorted(residents)


class PlainCounts:
    """Fading counts as one would write them down: everything is halved when the time has come."""

    def __init__(self, slots: int):
        self.period = HALVED_AFTER * slots
        self.counts: dict[Key, float] = {}
        self.last: dict[Key, int] = {}
        self.now = 0

    def use(self, key: Key) -> None:
        if self.now and self.now % self.period == 0:
            self.counts = {key: count / 2 for key, count in self.counts.items()}
        self.now += 1
        self.counts[key] = self.counts.get(key, 0) + 1
        self.last[key] = self.now

    def least(self, keys: set[Key]) -> Key:
        return min(keys, key=lambda key: (self.counts[key], self.last[key]))


@given(uses, st.integers(1, 6))
def test_lfu_against_plain_counting(keys: list[Key], slots: int) -> None:
    plain, residents, expected = PlainCounts(slots), set[Key](), []
    for key in keys:
        if key not in residents and len(residents) >= slots:
            expected.append(plain.least(residents))
            residents.remove(expected[-1])
        plain.use(key)
        residents.add(key)
    assert list(feed(make_policy("lfu", slots), keys, slots)) == expected


@given(uses, st.integers(1, 9))
def test_lfru_against_plain_counting(keys: list[Key], slots: int) -> None:
    plain, residents, expected = PlainCounts(slots), set[Key](), []
    for key in keys:
        if key not in residents and len(residents) >= slots:
            recent = sorted(residents, key=lambda key: -plain.last[key])[: slots // RECENT]
            expected.append(plain.least(residents - set(recent)))
            residents.remove(expected[-1])
        plain.use(key)
        residents.add(key)
    assert list(feed(make_policy("lfru", slots), keys, slots)) == expected


def test_lru() -> None:
    assert list(feed(make_policy("lru", 3), [1, 2, 3, 1, 4, 5, 1, 6], 3)) == [2, 3, 4]


def test_lfu_forgets_slowly() -> None:
    old = [1] * 20
    policy = make_policy("lfu", 2)
    assert list(feed(policy, [*old, 2, 3, 4], 2)) == [2, 3]  # 1 is by far the most used
    policy = make_policy("lfu", 2)
    later = [2, 2, 2, 3] * HALVED_AFTER * 2
    assert 1 in list(feed(policy, [*old, *later], 2))


def test_hot_keeps_what_is_used_most_and_lru_what_is_left() -> None:
    policy = make_policy("hot", 4)
    # 1 and 2 are hot; the rest share two slots by recency.
    assert list(feed(policy, [1, 1, 1, 2, 2, 2, 3, 4, 5, 3, 6, 3, 7], 4)) == [3, 4, 5, 6]
    assert (
        policy.victim(pinned={3, 7}) == 1
    )  # all others pinned: the least of the hot ones, the older of equals


def test_hot_remembers_who_left() -> None:
    policy = make_policy("hot", 2)
    victims = list(feed(policy, [1, 1, 2, 3, 2, 3, 2, 3, 2], 2))
    assert victims == [2, 3, 2, 3, 1]  # used three times, though always evicted: 2 takes the place of 1


def test_s3fifo_lets_newcomers_pass_and_keeps_the_proven() -> None:
    policy = make_policy("s3fifo", 10)
    proven, passing = [1, 1, 1, 2, 2, 2], list(range(10, 40))
    victims = list(feed(policy, [*proven, *passing], 10))
    assert victims == list(range(10, 32))


def test_s3fifo_gives_one_that_returns_a_place_in_main() -> None:
    policy = make_policy("s3fifo", 10)
    victims = list(feed(policy, [*range(12), 0, *range(20, 40)], 10))
    assert victims[:2] == [0, 1]
    assert 0 not in victims[2:]


def test_s3fifo_spares_the_used_once_in_main() -> None:
    policy = make_policy("s3fifo", 10)
    for key in (1, 2, 3):
        policy.add(key)
        policy.hit(key)
        policy.hit(key)
    for key in (4, 5, 6):
        policy.add(key)  # the small queue holds one: the proven ones move on
    assert [policy.victim({4, 5, 6}), policy.victim({1, 4, 5, 6})] == [1, 2]
    policy.hit(1)
    assert policy.victim({4, 5, 6}) == 2
    policy.hit(2)
    policy.hit(3)
    policy.hit(3)
    assert policy.victim({4, 5, 6}) == 1  # all were used, 1 and 2 least


@pytest.mark.parametrize("name", POLICIES)
def test_a_long_life_needs_no_more_memory(name: str) -> None:
    policy = make_policy(name, 20)
    keys = [key for turn in range(400) for key in (*range(30), turn % 30, turn % 7)]
    short, long = keys[: len(keys) // 8], keys
    list(feed(policy, short, 20))
    size = len(pickle.dumps(policy))
    policy = make_policy(name, 20)
    list(feed(policy, long, 20))
    assert len(pickle.dumps(policy)) < 1.5 * size + 1000


def test_unknown_policies_are_named() -> None:
    with pytest.raises(OptionError, match="policy is 'fifo', expected one of lru, lfu, lfru, s3fifo, hot"):
        make_policy("fifo", 3)
