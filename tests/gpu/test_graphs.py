"""What is recorded when, and how rows are padded.  Needs no card."""

from contextlib import nullcontext
from functools import partial

import pytest
import torch

from penstock.backend.cuda import launch
from penstock.backend.cuda.deepseek_v4.batch import BUCKETS, padded, pieces, smaller_pieces
from penstock.backend.cuda.launch import Recorded, Recording, Turn, cut, take_turn


def test_work_runs_once_is_recorded_and_then_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[str] = []

    def work() -> str:
        log.append("called")
        return "result"

    def capture(function: object) -> Recording:
        assert function is work
        log.append("recorded")
        recording = Recording()
        recording.parts = [lambda: log.append("replayed")] * 2
        return recording

    monkeypatch.setattr(launch, "capture", capture)
    recorded = Recorded(work)
    assert [recorded.run() for _ in range(3)] == ["result"] * 3
    assert log == ["called", "recorded", *["replayed"] * 4]
    assert recorded.recorded


class Graph:
    """Stands for torch's: says what is done with it."""

    def __init__(self, log: list[str], number: int):
        self.log, self.number = log, number

    def capture_begin(self, **_: object) -> None: ...

    def capture_end(self) -> None: ...

    def replay(self) -> None:
        self.log.append(f"graph {self.number}")


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Of graphs that are launched; there is no card."""
    found: list[str] = []
    numbers = iter(range(100))
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: Graph(found, next(numbers)))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "Stream", lambda: None)
    monkeypatch.setattr(torch.cuda, "stream", lambda _: nullcontext())
    return found


def layers(log: list[str], ahead: bool) -> Recorded:
    """Six layers with a turn of the host in each, cut before two of them, that have been run once."""

    def turn(number: int) -> None:
        log.append(f"turn {number}")

    def work() -> None:
        for number in range(6):
            if number in (2, 4):
                cut()
            take_turn(Turn(partial(turn, number), lambda: log.append("given up"), ahead))

    found = Recorded(work)
    found.run()
    assert log == [f"turn {number}" for number in range(6)]
    log.clear()
    return found


def test_the_host_has_its_turns_while_a_graph_runs(log: list[str]) -> None:
    layers(log, ahead=True).run()
    assert log == [
        "graph 0", "turn 0", "turn 1", "graph 1", "turn 2", "turn 3", "graph 2", "turn 4", "turn 5",
    ]  # fmt: skip


def test_what_may_not_be_launched_ahead_follows_the_turn(log: list[str]) -> None:
    layers(log, ahead=False).run()
    order = "graph 0, turn 0, graph 1, turn 1, graph 2, graph 3, turn 2, graph 4, turn 3, graph 5, graph 6, turn 4"
    assert ", ".join(log) == f"{order}, graph 7, turn 5, graph 8"


def test_a_turn_that_fails_leaves_nobody_waiting(log: list[str]) -> None:
    recorded = layers(log, ahead=True)

    def fails() -> None:
        raise KeyboardInterrupt

    recorded.run()
    assert recorded._recording is not None
    recorded._recording.parts[2] = fails
    log.clear()
    with pytest.raises(KeyboardInterrupt):
        recorded.run()
    assert log == ["graph 0", "turn 0", "given up"]


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
