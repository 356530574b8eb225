"""The memory of sequences: rings of recent rows, rows that only grow, and slots."""

import gc
import weakref
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

import penstock
from penstock.backend.cpu.states import CpuStates
from penstock.backend.state import DTYPES, Series, StateLayout
from penstock.kv.state import SequenceState
from tests.tiny import TinyModel

RING, ROWS = 0, 1


def pool(
    reach: int = 3, max_rewind: int = 2, lag: int = 0, dtype: str = "f32", context: int = 200
) -> CpuStates:
    """A ring of two channels, and rows of two tokens each."""
    series = (Series("ring", 2, dtype, reach=reach, lag=lag), Series("rows", 2, dtype, ratio=2))
    return CpuStates(StateLayout(series, context, max_rewind, dtype, vocab_size=1))


def numbers(first: int, count: int, dtype: str = "f32") -> NDArray[np.float32]:
    """Rows [first, first + count) of a series that counts."""
    row = np.arange(first, first + count)[:, None]
    return np.concatenate((row, -row), axis=1).astype(DTYPES[dtype])


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


# ── rings ─────────────────────────────────────────────────────────────────────────────────────────────────────


@given(
    reach=st.integers(1, 6),
    max_rewind=st.integers(0, 4),
    runs=st.lists(st.integers(1, 20), min_size=1, max_size=6),
    dtype=st.sampled_from(list(DTYPES)),
)
def test_a_ring_keeps_the_last_rows(reach: int, max_rewind: int, runs: list[int], dtype: str) -> None:
    """Also those of the step under way can be read, staged or not."""
    states = pool(reach, max_rewind, dtype=dtype)
    slot, position = states.allocate(), 0
    for count in runs:
        states.keep(slot, RING, position, numbers(position, count, dtype))
        for row in range(max(0, position - reach - max_rewind), position + count)[-states.capacities[RING] :]:
            assert np.array_equal(states.latest(slot, RING, row), numbers(row, 1, dtype))
        position += count
        states.commit(slot, position)
        first = max(0, position - states.capacities[RING])
        found = states.read(slot, RING, first, position)
        assert np.array_equal(found, numbers(first, position - first, dtype))


@given(before=st.integers(0, 12), count=st.integers(2, 20), left_out=st.integers(0, 4), lag=st.integers(0, 1))
def test_some_rows_of_a_step_may_be_left_out(before: int, count: int, left_out: int, lag: int) -> None:
    """What counted before the step counts afterwards, and what it left out never did."""
    states = pool(reach=3, max_rewind=4, lag=lag)
    slot = states.allocate()
    states.write(slot, RING, 0, numbers(0, before))
    states.keep(slot, RING, before, numbers(before, count))
    kept = before + count - min(left_out, count)
    states.commit(slot, kept + lag)
    first = max(0, kept - 3)
    assert np.array_equal(states.read(slot, RING, first, kept), numbers(first, kept - first))


def test_staged_rows_are_invisible_until_committed() -> None:
    states = pool()
    slot = states.allocate()
    states.keep(slot, RING, 0, numbers(0, 2))
    states.commit(slot, 2)
    states.keep(slot, RING, 2, numbers(7, 3))
    assert np.array_equal(states.read(slot, RING, 0, 2), numbers(0, 2))
    states.discard(slot)
    states.commit(slot, 5)
    assert np.array_equal(states.read(slot, RING, 0, 2), numbers(0, 2))


def test_a_single_row_spares_all_that_count() -> None:
    """It goes into the ring before the step has succeeded."""
    states = pool(reach=3, max_rewind=2)
    slot = states.allocate()
    states.write(slot, RING, 0, numbers(0, 20))
    states.keep(slot, RING, 20, numbers(99, 1))
    assert np.array_equal(states.read(slot, RING, 15, 20), numbers(15, 5))


# ── memory ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_only_what_is_written_costs_memory() -> None:
    """Room for a million tokens must not become resident by being made, nor by being read."""
    series = (Series("rows", 512, "f16"), Series("ring", 512, "f16", reach=128))
    states = CpuStates(StateLayout(series, 1 << 20, 0, "f16", vocab_size=1))
    before = resident()
    slots = [states.allocate() for _ in range(20)]  # 20 GiB of address space
    assert resident() - before < 16 << 20
    for slot in slots:
        states.write(slot, 0, 0, np.ones((100, 512), np.float16))
    assert resident() - before < 16 << 20
    assert float(states.read(slots[3], 0, 0, 100).astype(np.float32).sum()) == 51_200
    assert not states.read(slots[3], 0, 100, 101).any()


def test_freed_slots_give_their_memory_back() -> None:
    series = (Series("rows", 1024, "f32"),)
    states = CpuStates(StateLayout(series, 1 << 20, 0, "f32", vocab_size=1))
    slot = states.allocate()
    states.write(slot, 0, 0, np.ones((1 << 14, 1024), np.float32))  # 64 MiB
    full = resident()
    states.free(slot)
    gc.collect()
    assert resident() < full - (48 << 20)
    assert states.allocate() != slot  # numbers are not used again


def test_growing_rows_stay_where_they_are() -> None:
    states = pool()
    slot = states.allocate()
    address = states.slots[slot].addresses[ROWS]
    first = states.read(slot, ROWS, 0, 1)
    for row in range(100):
        states.write(slot, ROWS, row, numbers(row, 1))
    assert states.slots[slot].addresses[ROWS] == address == first.ctypes.data
    assert np.array_equal(states.read(slot, ROWS, 0, 100), numbers(0, 100))


def test_a_copy_shares_nothing() -> None:
    states = pool()
    one, two = states.allocate(), states.allocate()
    states.write(one, RING, 0, numbers(0, 9))
    states.write(one, ROWS, 0, numbers(0, 4))
    states.copy(one, two, 9)
    assert np.array_equal(states.read(two, RING, 6, 9), numbers(6, 3))
    assert np.array_equal(states.read(two, ROWS, 0, 4), numbers(0, 4))
    states.write(two, RING, 8, numbers(70, 1))
    states.write(two, ROWS, 0, numbers(80, 1))
    assert np.array_equal(states.read(one, RING, 6, 9), numbers(6, 3))
    assert np.array_equal(states.read(one, ROWS, 0, 4), numbers(0, 4))


def test_as_named_rows_and_back() -> None:
    states = pool(reach=3, max_rewind=2)
    one, two = states.allocate(), states.allocate()
    states.write(one, RING, 0, numbers(0, 11))
    states.write(one, ROWS, 0, numbers(0, 5))
    saved = states.tensors(one, position=11, floor=9)
    assert {name: rows.shape for name, rows in saved.items()} == {"ring": (5, 2), "rows": (5, 2)}
    states.restore(two, 11, 9, saved)
    for name, rows in states.tensors(two, 11, 9).items():
        assert np.array_equal(rows, saved[name])


# ── slots and their owners ────────────────────────────────────────────────────────────────────────────────────


def test_a_slot_is_free_when_nobody_holds_the_state() -> None:
    states = pool()
    first, second = SequenceState(states), SequenceState(states)
    fork = first.fork()
    assert set(states.slots) == {first.slot, second.slot, fork.slot}
    del first
    gc.collect()
    assert set(states.slots) == {second.slot, fork.slot}
    memory = weakref.ref(states.slots[fork.slot])
    del fork
    gc.collect()
    assert memory() is None
    assert set(states.slots) == {second.slot}


def test_sessions_leave_nothing_behind(engine: penstock.Engine, tiny: TinyModel) -> None:
    gc.collect()
    before = set(engine.states.slots)  # type: ignore[attr-defined]
    session = engine.session()
    session.feed(tiny.ids[:40])
    session.fork().feed([1])
    engine.feed([(session, [1, 2, 3]), (engine.session(), [4])])
    del session
    gc.collect()
    assert set(engine.states.slots) == before  # type: ignore[attr-defined]
