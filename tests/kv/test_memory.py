"""Rings and growing rows."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from penstock.kv.memory import GrowingRows, Ring


@given(
    capacity=st.integers(1, 9),
    runs=st.lists(st.integers(1, 20), min_size=1, max_size=6),
)
def test_a_ring_remembers_the_last_rows(capacity: int, runs: list[int]) -> None:
    ring = Ring(capacity, 2, torch.float32)
    series = torch.empty(0, 2)
    for count in runs:
        rows = torch.randn(count, 2)
        ring.stage(len(series), rows)
        ring.commit()
        series = torch.cat((series, rows))
    first = max(0, len(series) - capacity)
    assert torch.equal(ring.read(first, len(series)), series[first:])


def test_staged_rows_are_invisible_until_committed() -> None:
    ring = Ring(3, 1, torch.float32)
    ring.stage(0, torch.tensor([[1.0], [2.0]]))
    ring.commit()
    ring.stage(2, torch.tensor([[9.0]] * 3))
    assert ring.read(0, 2).tolist() == [[1.0], [2.0]]
    ring.discard()
    ring.commit()
    assert ring.read(0, 2).tolist() == [[1.0], [2.0]]


@given(
    capacity=st.integers(1, 9),
    runs=st.lists(st.integers(1, 20), min_size=1, max_size=8),
)
def test_rows_of_a_step_can_be_read_before_they_are_kept(capacity: int, runs: list[int]) -> None:
    ring = Ring(capacity, 2, torch.float32)
    series = torch.empty(0, 2)
    for count in runs:
        rows = torch.randn(count, 2)
        at = len(series)
        if (fresh := ring.open(at, count)) is None:
            ring.write(at, rows)
        else:
            fresh.copy_(rows)
        series = torch.cat((series, rows))
        first = max(0, at - capacity + 1)
        assert torch.equal(ring.read(first, at + count), series[first:])
        ring.trim()
        ring.commit()
        assert ring.fresh is None
    first = max(0, len(series) - capacity)
    assert torch.equal(ring.read(first, len(series)), series[first:])


def test_growing_rows_cost_memory_only_where_written() -> None:
    """A million-token reservation must not become resident by being made."""
    before = _resident()
    rows = GrowingRows(1 << 20, 512, torch.float16)  # 1 GiB of address space
    assert _resident() - before < 16 << 20
    rows.write(0, torch.ones(1000, 512))
    assert _resident() - before < 16 << 20
    assert float(rows.view(1000).float().sum()) == 512_000


def test_a_clone_shares_nothing() -> None:
    rows = GrowingRows(8, 1, torch.float32)
    rows.write(0, torch.tensor([[1.0], [2.0]]))
    copy = rows.clone(2)
    copy.write(0, torch.tensor([[5.0]]))
    assert rows.view(2).tolist() == [[1.0], [2.0]]


def _resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096
