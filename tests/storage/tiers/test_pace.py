"""What a token takes besides what is waited for, as a run finds it, and what is noted of it."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.machine.notes import notes_path
from penstock.storage.tiers.counters import TierCounters
from penstock.storage.tiers.division import Times
from penstock.storage.tiers.pace import ENOUGH, NOTES, Pace, Pacer, note, noted

LAYERS = 4
TIMES = Times(1e-4, (1e-4, 4e-4, 1.6e-3), call=5e-5)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that only the test moves."""
    now = [0.0]
    monkeypatch.setattr("penstock.storage.tiers.pace.time.perf_counter", lambda: now[0])
    return now


def watched(clock: list[float], tokens: int, rows: int = 1) -> Pacer:
    """Layers of 500 microseconds: the card waits 300 for the host, then 50 for the link, where what is brought and
    computed should have taken 270."""
    counters = TierCounters()
    pacer = Pacer(counters, LAYERS)
    for _ in range(tokens):
        for block in range(LAYERS):
            pacer.turn(block, rows)
            clock[0] += 500e-6
            counters.host_stall_seconds += 300e-6
            counters.link_stall_seconds += 50e-6
            counters.expected_seconds += 270e-6
    return pacer


def test_a_token_is_what_the_device_computes_and_what_turns_cost(clock: list[float]) -> None:
    found = watched(clock, ENOUGH + 1).pace
    assert found is not None
    assert found.device == pytest.approx(LAYERS * 150e-6)
    assert found.turn == pytest.approx(80e-6)


def test_a_few_tokens_say_nothing(clock: list[float]) -> None:
    assert watched(clock, ENOUGH).pace is None


def test_steps_of_several_rows_say_nothing(clock: list[float]) -> None:
    assert watched(clock, 3 * ENOUGH, rows=2).pace is None


def plan(**tokens: int) -> Any:
    kinds = [SimpleNamespace(slot_bytes=100, blocks=(0, 1))]
    return SimpleNamespace(tiers=SimpleNamespace(kinds=kinds), read_by_token=tokens)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


@pytest.mark.usefixtures("cache")
def test_what_is_noted_is_found_again_for_the_same_model_and_device() -> None:
    note(plan(dense=7), "a card", Pace(6e-3, 7e-5), TIMES)
    assert noted(plan(dense=7), "a card") == (Pace(6e-3, 7e-5), TIMES)
    assert noted(plan(dense=8), "a card") is None
    assert noted(plan(dense=7), "another") is None


@pytest.mark.usefixtures("cache")
def test_notes_that_make_no_sense_are_not_believed() -> None:
    note(plan(dense=7), "a card", Pace(6e-3, 7e-5), TIMES)
    written = notes_path(NOTES).read_text()
    for damage in (written.replace("0.006", "-1"), written.replace("0.006", '"x"'), "[]", "{"):
        notes_path(NOTES).write_text(damage)
        assert noted(plan(dense=7), "a card") is None
