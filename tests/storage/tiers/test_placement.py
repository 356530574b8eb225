"""Bookkeeping of a device's slots: nobody has two, no slot has two, and what was decided can be done."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.storage.cache import Cache
from penstock.storage.policies import POLICIES, make_policy
from penstock.storage.tiers.counters import TierCounters
from penstock.storage.tiers.division import Division, Times
from penstock.storage.tiers.placement import SPARE, Placement

EXPERTS, USED, BLOCKS, PASSING = 6, 2, 3, 4
FEWEST = PASSING + 1 + SPARE[0]
DIVISION = Division(Times(1e-4, (1e-4, 4e-4, 1.6e-3)))


def place(
    slots: int, policy: str = "lru", memory: Cache | None = None, long_slots: int | None = None
) -> Placement:
    return Placement(
        policy,
        slots,
        DIVISION,
        TierCounters(),
        blocks=BLOCKS,
        experts=EXPERTS,
        used=USED,
        memory=memory,
        passing=PASSING,
        long_slots=long_slots,
    )


numbers = st.sets(st.integers(0, EXPERTS - 1), min_size=1, max_size=4).map(sorted)
requests = st.lists(
    st.tuples(st.integers(0, BLOCKS - 1), numbers, st.sampled_from([1, 2, 3, 40])), max_size=40
)


def check(placement: Placement) -> None:
    placement.settle()
    taken = list(placement.slot_of.values())
    assert len(taken) == len(set(taken))
    assert set(placement.slot_of) == set(placement.cache.keys())
    assert not set(placement.free) & set(taken)
    assert not set(placement.passing) & {*taken, *placement.free}
    assert all(0 <= slot < placement.slots for slot in [*taken, *placement.free, *placement.passing])


@given(st.sampled_from(list(POLICIES)), st.integers(FEWEST, 26), requests, st.integers(1, 12))
def test_every_slot_has_one_expert(
    policy: str, slots: int, wanted: Sequence[tuple[int, list[int], int]], often: int
) -> None:
    placement = place(slots, policy, long_slots=max(FEWEST, slots - 2))
    for number, (block, ids, rows) in enumerate(wanted):
        base = block * EXPERTS
        if rows > 32:
            missing = placement.long_turn(block, ids, rows)
            assert all((number in missing) != (base + number in placement.slot_of) for number in ids)
            assert len(placement.passing) == PASSING
        else:
            turn = placement.turn(block, ids, rows)
            assert sorted([*turn.here, *turn.bring, *turn.host]) == ids
            assert all(placement.slot_of[base + number] == slot for number, slot in turn.bring.items())
            assert all(base + number in placement.slot_of for number in turn.here)
        if number % often == 0:  # turns are settled together
            check(placement)
    placement.settle()
    counters = placement.counters
    assert counters.device_misses == counters.copied + counters.passed + counters.on_host
    assert counters.device_misses == counters.memory_hits + counters.disk_reads
    assert counters.copied - counters.device_evictions == len(placement.slot_of)


@given(st.integers(FEWEST, 26), st.integers(FEWEST, 26), requests)
def test_fewer_slots_keep_what_lies_in_them(
    before: int, after: int, wanted: Sequence[tuple[int, list[int], int]]
) -> None:
    placement = place(before)
    for block, ids, _ in wanted:
        placement.turn(block, ids, 1)
    kept = {key: slot for key, slot in placement.slot_of.items() if slot < after}
    placement.resize(after, after)
    assert set(placement.slot_of) <= set(kept)
    assert all(kept[key] == slot for key, slot in placement.slot_of.items())
    check(placement)


def test_what_was_not_brought_is_not_there() -> None:
    placement = place(16)
    turn = placement.turn(0, [1, 2, 3], 1)
    placement.lost(0, list(turn.bring))
    assert not placement.slot_of
    assert len(placement.free) == 16
    check(placement)


def test_the_link_carries_what_is_used_most() -> None:
    placement = place(16)
    for _ in range(5):
        placement.turn(0, [0], 1)  # is copied at once and stays
    for _ in range(3):
        placement.turn(1, [4, 5], 1)
    fresh = place(16)
    fresh._uses[2] = 3
    turn = fresh.turn(0, [1, 2], 1)
    assert list(turn.bring) == [2]
    assert turn.host == [1]


@pytest.mark.parametrize("policy", POLICIES)
def test_the_host_lets_go_what_the_device_has(policy: str) -> None:
    memory = Cache(3, make_policy(policy, 3), lambda _: 1)
    placement = place(16, policy, memory)
    list(memory.request([0, 1]))
    turn = placement.turn(0, [0, 1, 2], 1)
    assert turn.bring
    assert placement.spared(0, [0, 1, 2]) == []  # there is room for all three
    list(memory.request([0, 1, 2]))
    placement.settle()
    assert placement.counters.disk_reads == 1
    assert placement.spared(0, [3]) == [next(iter(turn.bring))]
    assert placement.spared(1, [3]) == [*turn.bring][1:2]


def test_what_a_turn_was_to_bring_is_not_there_if_it_is_given_up() -> None:
    placement = place(20)
    first = placement.turn(0, [0, 1], 1)
    second = placement.turn(1, [2, 3], 1)
    assert first.bring
    assert second.bring
    placement.give_up()
    there = set(first.bring)
    assert set(placement.slot_of) == there  # the device had asked for the second turn, so it has the first
    check(placement)
    placement.begin_turn(2, 1)
    placement.give_up()  # before anything was decided
    assert set(placement.slot_of) == there
    again = placement.turn(1, [2, 3], 1)
    assert again.bring.keys() == second.bring.keys()
    check(placement)


def test_a_long_step_does_with_few_slots() -> None:
    placement = place(FEWEST)
    placement.resize(PASSING, PASSING)
    placement.long_turn(0, [0, 5], 40)
    assert len(placement.passing) == 2
    check(placement)


def test_a_long_step_gives_its_slots_back() -> None:
    placement = place(18, long_slots=15)
    for block in range(BLOCKS):
        placement.turn(block, [0, 1, 2, 3], 1)
        placement.turn(block, [0, 1, 2, 3], 1)
    placement.long_turn(0, [0, 5], 40)
    assert max([*placement.slot_of.values(), *placement.free, *placement.passing]) < 15
    placement.turn(0, [0], 1)
    assert not placement.passing
    assert len(placement.free) + len(placement.slot_of) == 18


@given(
    st.integers(FEWEST, 26), requests, st.lists(st.tuples(st.integers(0, BLOCKS - 1), numbers), max_size=40)
)
def test_what_is_brought_ahead_has_a_slot_of_its_own(
    slots: int, wanted: Sequence[tuple[int, list[int], int]], likely: Sequence[tuple[int, list[int]]]
) -> None:
    placement = place(slots, long_slots=max(FEWEST, slots - 2))
    for number, (block, ids, rows) in enumerate(wanted):
        if rows > 32:
            placement.long_turn(block, ids, rows)
            check(placement)
            continue
        coming = dict[int, int]()
        if number < len(likely):
            about, guessed = likely[number]
            free = set(placement.free)
            coming = placement.ahead(about, guessed, 2) if not placement.passing else {}
            assert set(coming.values()) <= free
            assert not set(coming.values()) & {*placement.free, *placement.slot_of.values()}
            coming = coming if about == block else {}
        turn = placement.turn(block, ids, rows)
        for each in set(coming) & set(ids):
            assert each in turn.here
            assert placement.slot_of[block * EXPERTS + each] == coming[each]
        check(placement)


def test_a_guess_that_was_wrong_leaves_its_slot() -> None:
    placement = place(20)
    coming = placement.ahead(1, [3, 4, 5], 2)
    assert list(coming) == [3, 4]
    placement.turn(0, [0, 1], 1)
    placement.settle()
    assert not set(coming.values()) & set(placement.free)  # its block has not been asked yet
    assert placement.turn(1, [3, 5], 1).here == [3]
    placement.settle()
    assert coming[4] in placement.free
    assert (placement.counters.ahead_right, placement.counters.ahead_wrong) == (1, 1)


def test_guesses_that_are_mostly_wrong_are_not_made_for_a_while() -> None:
    placement = place(20)
    for number in range(200):
        placement.ahead(0, [4, 5], 2)
        placement.turn(0, [number % 2, 2], 1)
        placement.settle()
    assert not placement.gate.open


def test_a_shorter_step_leaves_more_slots() -> None:
    placement = Placement(
        "lru",
        100,
        DIVISION,
        TierCounters(),
        blocks=BLOCKS,
        experts=EXPERTS,
        used=USED,
        passing=PASSING,
        long_slots=40,
        chunk=600,
        step=4,
    )
    left = []
    for rows in (100, 50, 300, 600, 100):  # what has been given is not taken back before the end
        placement.begin_long(rows)
        left.append(placement.left)
        check(placement)
    assert left == [88, 88, 68, 40, 40]
    placement.end_long()
    placement.begin_long(100)
    assert placement.left == 88
