"""What a token takes besides what is waited for, as a run finds it, and what is noted of it."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.machine.notes import notes_path
from penstock.storage.tiers.counters import TierCounters
from penstock.storage.tiers.division import Times
from penstock.storage.tiers.pace import (
    ENOUGH,
    NOTES,
    Pace,
    Pacer,
    Routing,
    note,
    note_routing,
    noted,
    noted_routing,
    power,
)

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
    computed should have taken 270.  Of six experts the card has three, one of which was guessed, and memory one."""
    counters = TierCounters()
    pacer = Pacer(counters, LAYERS)
    for _ in range(tokens):
        for block in range(LAYERS):
            pacer.turn(block, rows)
            clock[0] += 500e-6
            counters.host_stall_seconds += 300e-6
            counters.link_stall_seconds += 50e-6
            counters.expected_seconds += 270e-6
            counters.device_hits += 3
            counters.device_misses += 3
            counters.ahead_right += 1
            counters.memory_hits += 1
    return pacer


def test_a_token_is_what_the_device_computes_and_what_turns_cost(clock: list[float]) -> None:
    found = watched(clock, ENOUGH + 1).pace
    assert found is not None
    assert found.device == pytest.approx(LAYERS * 150e-6)
    assert found.turn == pytest.approx(80e-6)


def test_what_slots_hold_and_what_is_guessed_are_told_apart(clock: list[float]) -> None:
    found = watched(clock, ENOUGH + 1).routing(device=1 / 9, memory=1 / 9)
    assert found is not None
    assert found.device == pytest.approx(1 / 2)  # a third of the uses
    assert found.memory == pytest.approx(1 / 2)  # a third of the three that are missing
    assert found.guessed == pytest.approx(1 / 4)  # of the four that slots did not have


@pytest.mark.parametrize("uses", [0.0, 0.3, 1.0])
def test_every_share_has_a_power(uses: float) -> None:
    for share in (0.01, 0.5, 0.99):
        assert share ** power(share, uses) == pytest.approx(uses, abs=2e-3)
    for share in (0.0, 1.0):
        assert power(share, uses) == 1


@pytest.mark.parametrize(("tokens", "rows"), [(ENOUGH, 1), (3 * ENOUGH, 2)])
def test_a_few_tokens_and_steps_of_several_rows_say_nothing(
    clock: list[float], tokens: int, rows: int
) -> None:
    pacer = watched(clock, tokens, rows)
    assert pacer.pace is None
    assert pacer.routing(0.5, 1.0) is None


def test_a_turn_may_take_less_than_it_should(clock: list[float]) -> None:
    """Where the processors are faster than they were when they were measured."""
    counters = TierCounters()
    pacer = Pacer(counters, 1)
    for _ in range(ENOUGH + 1):
        pacer.turn(0, 1)
        clock[0] += 300e-6
        counters.host_stall_seconds += 100e-6
        counters.expected_seconds += 150e-6
    assert pacer.pace is not None
    assert pacer.pace.device == pytest.approx(200e-6)
    assert pacer.pace.turn == pytest.approx(-50e-6)


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
def test_routing_is_noted_by_model() -> None:
    note(plan(dense=7), "a card", Pace(6e-3, 7e-5), TIMES)
    note_routing("a model", Routing(0.8, 1.5, 0.2))
    assert noted_routing("a model") == (0.8, 1.5, 0.2)
    assert noted_routing("another") is None
    written = notes_path(NOTES).read_text()
    for damage in ("1.2", "-0.2", '"x"', "NaN"):
        notes_path(NOTES).write_text(written.replace("0.2", damage))
        assert noted_routing("a model") is None


@pytest.mark.usefixtures("cache")
def test_notes_that_make_no_sense_are_not_believed() -> None:
    note(plan(dense=7), "a card", Pace(6e-3, 7e-5), TIMES)
    written = notes_path(NOTES).read_text()
    for damage in (written.replace("0.006", "-1"), written.replace("0.006", '"x"'), "[]", "{"):
        notes_path(NOTES).write_text(damage)
        assert noted(plan(dense=7), "a card") is None
