"""Where sequences' rows lie, and that memory comes by the page: over memory of the host, so it needs no card."""

import ctypes
from typing import Any

import numpy as np
import pytest
import torch

from penstock.backend.cuda.device import CudaError
from penstock.backend.cuda.memory import Reservation
from penstock.backend.cuda.states import STEP_ROWS, CudaStates, SlotLayout
from penstock.backend.state import Series, StateLayout
from tests.published import flash_layout

PAGE = 4096


class HostPages:
    """Pages of the host's memory; writing where nothing is mapped would not be noticed, so what is mapped is kept."""

    size = PAGE

    def __init__(self) -> None:
        self.memory: dict[int, Any] = {}
        self.mapped: dict[int, int] = {}

    def view(self, address: int, nbytes: int) -> torch.Tensor:
        return torch.frombuffer((ctypes.c_uint8 * nbytes).from_address(address), dtype=torch.uint8)

    def wait(self) -> None: ...

    def reserve(self, nbytes: int) -> int:
        memory = np.zeros(nbytes + PAGE, np.uint8)
        start = int(-memory.ctypes.data % PAGE + memory.ctypes.data)
        self.memory[start] = memory
        return start

    def map(self, address: int, nbytes: int) -> Any:
        assert address % PAGE == 0
        assert nbytes % PAGE == 0
        assert address not in self.mapped
        self.mapped[address] = nbytes
        return address

    def unmap(self, address: int, nbytes: int, handle: Any) -> None:
        assert handle == address
        assert self.mapped.pop(address) == nbytes

    def release(self, address: int, nbytes: int) -> None:
        assert nbytes
        del self.memory[address]


SERIES = (
    Series("a.window", 8, "f16", reach=16),
    Series("a.frontier", 12, "f32", reach=8),
    Series("a.rows", 8, "f16", ratio=4),
    Series("b.rows", 6, "bf16", ratio=4),
    Series("c.rows", 8, "f32", ratio=128),
)
LAYOUT = StateLayout(SERIES, context=4096, max_rewind=4, kv_dtype="f16", vocab_size=10)


@pytest.fixture
def pool() -> CudaStates:
    return CudaStates(LAYOUT, HostPages())


def rows(series: Series, count: int, seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    if series.dtype == "bf16":
        return rng.integers(0, 2**16, (count, series.width)).astype(np.uint16)
    return rng.standard_normal((count, series.width)).astype("f4" if series.dtype == "f32" else "f2")


def test_no_two_rows_share_a_byte() -> None:
    layout = SlotLayout(LAYOUT, PAGE)
    used = np.zeros(layout.nbytes, bool)
    for series, place in zip(SERIES, layout.places, strict=True):
        for row in range(place.capacity):
            start = place.at + row * place.apart
            part = used[start : start + series.width * series.itemsize]
            assert not part.any()
            assert len(part) == series.width * series.itemsize
            part[:] = True


def test_what_is_written_is_read(pool: CudaStates) -> None:
    slot, other = pool.allocate(), pool.allocate()
    for number, series in enumerate(SERIES):
        first = 1000 if series.reach else 0
        written = rows(series, 20, number)
        pool.write(slot, number, first, written)
        pool.write(other, number, first, rows(series, 20, number + 100))
        np.testing.assert_array_equal(pool.read(slot, number, first, first + 20), written)


def test_a_ring_keeps_the_last_rows(pool: CudaStates) -> None:
    slot, capacity = pool.allocate(), pool.places[0].capacity
    written = rows(SERIES[0], capacity + 30)
    pool.write(slot, 0, 7, written)
    np.testing.assert_array_equal(pool.read(slot, 0, 37, 37 + capacity), written[30:])


def test_a_step_that_fails_replaces_nothing_that_counts() -> None:
    """A ring has room for a step's rows beside all that can still be returned to."""
    layout = SlotLayout(LAYOUT, PAGE)
    for series, place in zip(SERIES, layout.places, strict=True):
        if series.reach is not None:
            assert place.capacity >= series.reach + LAYOUT.max_rewind + STEP_ROWS


def test_a_copy_is_independent(pool: CudaStates) -> None:
    slot, copy = pool.allocate(), pool.allocate()
    for number, series in enumerate(SERIES):
        pool.write(slot, number, 0, rows(series, 10, number))
    pool.copy(slot, copy, position=1280)
    for number, series in enumerate(SERIES):
        expected = rows(series, 10, number)
        pool.write(slot, number, 0, rows(series, 10, 50))
        np.testing.assert_array_equal(pool.read(copy, number, 0, 10), expected)


def test_memory_comes_as_a_sequence_grows_and_goes_with_it() -> None:
    pages = HostPages()
    pool = CudaStates(LAYOUT, pages)
    slot = pool.allocate()
    empty = pool.committed
    pool.ensure(slot, 4096)
    grown = pool.committed
    assert empty < grown == sum(pages.mapped.values()) == pool.slot_layout.committed(4096, PAGE)
    pool.ensure(slot, 4096)
    assert pool.committed == grown
    pool.free(slot)
    pool.allocate()
    assert sum(pages.mapped.values()) == empty
    pool.close()
    assert not pages.mapped
    assert not pages.memory


def test_a_limit_holds_and_what_was_there_stays() -> None:
    pool = CudaStates(LAYOUT, HostPages())
    slot = pool.allocate()
    pool.limit = pool.committed
    with pytest.raises(CudaError, match="end some, or give more vram"):
        pool.ensure(slot, 4096)
    pool.write(slot, 0, 0, rows(SERIES[0], 3))
    np.testing.assert_array_equal(pool.read(slot, 0, 0, 3), rows(SERIES[0], 3))


def test_a_reservation_maps_every_page_once() -> None:
    pages = HostPages()
    memory = Reservation(pages, 10 * PAGE)
    memory.commit(PAGE, 3 * PAGE)
    assert memory.missing(0, 10 * PAGE) == 8 * PAGE
    memory.commit(0, 10 * PAGE)
    assert memory.committed == 10 * PAGE
    assert sorted(pages.mapped.values()) == [PAGE, 2 * PAGE, 7 * PAGE]


def test_the_published_models_sessions_are_small() -> None:
    """A page more here and there, not one for every layer: 2 MiB pages, 8,192 tokens."""
    layout = flash_layout("f16", 1 << 20, 64)
    page = 2 << 20
    taken = SlotLayout(layout, page).committed(8192, page)
    assert taken < layout.live_bytes(8192) + (48 << 20)


def test_a_long_step_changes_rings_when_it_is_committed() -> None:
    layout = StateLayout(SERIES, 1024, 8, "f16", 100)
    pool = CudaStates(layout, HostPages())
    slot = pool.allocate()
    rows = np.arange(16 * 8, dtype=np.float16).reshape(16, 8)
    pool.write(slot, 0, 0, rows)
    for kept in (False, True):
        staged = pool.stage(slot)
        assert pool.stage(slot) == staged == pool.writable(slot) != pool.address(slot)
        place = pool.places[0]
        there = torch.frombuffer((ctypes.c_uint8 * 16).from_address(staged + place.at), dtype=torch.float16)
        assert there.tolist() == rows[0].tolist()  # a copy of what was
        there.fill_(7)
        assert np.array_equal(pool.read(slot, 0, 0, 16), rows)  # which nobody sees yet
        if kept:
            pool.commit(slot, 16)
        else:
            pool.discard(slot)
        assert pool.writable(slot) == pool.address(slot)
        assert (pool.read(slot, 0, 0, 1) == 7).all() == kept
