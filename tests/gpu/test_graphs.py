"""What is recorded when, and how rows are padded.  Needs no card."""

from collections.abc import Callable

import pytest

from penstock.backend.cuda import launch
from penstock.backend.cuda.deepseek_v4.batch import BUCKETS, padded, pieces, smaller_pieces
from penstock.backend.cuda.launch import Recorded


def test_work_runs_once_is_recorded_and_then_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[str] = []

    def work() -> str:
        log.append("called")
        return "result"

    def capture(function: object) -> list[Callable[[], None]]:
        assert function is work
        log.append("recorded")
        return [lambda: log.append("replayed")] * 2

    monkeypatch.setattr(launch, "capture", capture)
    recorded = Recorded(work)
    assert [recorded.run() for _ in range(3)] == ["result"] * 3
    assert log == ["called", "recorded", *["replayed"] * 4]
    assert recorded.recorded


def test_work_that_fails_is_tried_again() -> None:
    failures = ["the first time"]

    def work() -> int:
        if failures:
            raise ValueError(failures.pop())
        return 7

    recorded = Recorded(work)
    with pytest.raises(ValueError, match="the first time"):
        recorded.run()
    assert recorded.run() == 7


def test_rows_are_padded_to_a_graph_or_to_whole_pieces() -> None:
    assert [padded(rows) for rows in (1, 2, 3, 4, 5, 8, 9, 17, 32, 33, 64)] == [
        1, 2, 3, 4, 8, 8, 16, 32, 32, 40, 64,
    ]  # fmt: skip
    assert all(padded(bucket) == bucket for bucket in BUCKETS)


def test_pieces_cover_all_rows() -> None:
    for rows in (1, 3, 8, 32, 40):
        for size in (1, 2, 4, 8):
            assert [row for a, b in pieces(rows, size) for row in range(a, b)] == list(range(rows))


def test_pieces_get_smaller_until_they_fit() -> None:
    def make(size: int) -> int:
        if size > 2:
            raise ValueError
        return size

    def never(size: int) -> int:
        raise ValueError(f"never, not even {size}")

    assert smaller_pieces(make) == 2
    with pytest.raises(ValueError, match="never"):
        smaller_pieces(never)
