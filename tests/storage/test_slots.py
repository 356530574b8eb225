"""Slots: used again, never more than the limit, and given back when others need the room."""

import mmap

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.storage.slots import ROOM, Slot, Slots

PAGE = mmap.PAGESIZE


def resident(slot: Slot) -> bool:
    """Whether what was written is still there: pages that were given back are zeros again."""
    return bool(slot.memory[0])


def test_a_slot_is_used_again() -> None:
    slots = Slots(4 * PAGE)
    first = slots.take(2 * PAGE)
    first.memory[:] = 7
    slots.give(first)
    again = slots.take(2 * PAGE)
    assert again.address == first.address
    assert slots.held == 2 * PAGE


def test_another_size_takes_over_the_pages() -> None:
    slots = Slots(4 * PAGE)
    small = [slots.take(2 * PAGE) for _ in range(2)]
    for slot in small:
        slot.memory[:] = 7
        slots.give(slot)
    large = slots.take(3 * PAGE)
    large.memory[:] = 9
    assert not any(resident(slot) for slot in small)
    assert slots.held == 3 * PAGE
    with pytest.raises(MemoryError, match="beyond"):
        slots.take(2 * PAGE)


def test_shrinking_gives_pages_back() -> None:
    slots = Slots(8 * PAGE)
    taken = [slots.take(PAGE) for _ in range(8)]
    for slot in taken:
        slot.memory[:] = 7
    slots.resize(3 * PAGE)
    for slot in taken:
        slots.give(slot)
    assert slots.held == 3 * PAGE
    assert sum(resident(slot) for slot in taken) == 3


def test_odd_sizes_are_refused() -> None:
    for size in (0, 100, PAGE + 1):
        with pytest.raises(ValueError, match="whole number of pages"):
            Slots(1 << 20).take(size)


@settings(deadline=None, max_examples=40)
@given(st.lists(st.tuples(st.sampled_from([1, 2, 5]), st.booleans()), max_size=80))
def test_nobody_shares_memory(actions: list[tuple[int, bool]]) -> None:
    slots = Slots(40 * PAGE)
    used: list[tuple[Slot, np.uint8]] = []
    for number, (pages, give) in enumerate(actions, start=1):
        if give and used:
            slot, mark = used.pop(len(used) // 2)
            assert (slot.memory == mark).all()
            slots.give(slot)
        elif sum(slot.memory.size for slot, _ in used) + pages * PAGE <= slots.limit:
            slot = slots.take(pages * PAGE)
            assert slot.address == slot.memory.ctypes.data
            slot.memory[:] = number % 256
            used.append((slot, np.uint8(number % 256)))
        assert slots.held <= slots.limit
    for slot, mark in used:
        assert (slot.memory == mark).all()


def test_more_slots_than_one_arena() -> None:
    slots = Slots((ROOM + 5) * PAGE)
    taken = [slots.take(PAGE) for _ in range(ROOM + 5)]
    assert len({slot.address for slot in taken}) == ROOM + 5
