"""The policy that a model's own trace speaks for."""

from pathlib import Path

import pytest

from penstock.engine.engine import Engine
from penstock.machine.notes import notes_path, recall
from penstock.storage.policy_choice import DEFAULT, NOTES, SHORTEST, STEP, choose_policy, note_trace
from penstock.storage.replay import best_policy, replay
from penstock.storage.trace import TraceHeader, TraceWriter, read_trace
from penstock.weights.synth import synth

EXPERT = STEP


def record(path: Path, requests: list[list[int]]) -> None:
    with TraceWriter(path, TraceHeader("model", {"blk.0": EXPERT}, 64)) as trace:
        for step, ids in enumerate(requests):
            trace.write(step, 0, 1, ids)
    note_trace("model", path)


def test_nothing_recorded() -> None:
    assert choose_policy("model", 8 * EXPERT) == DEFAULT


def test_the_best_of_the_trace(tmp_path: Path) -> None:
    """One expert again and again between long scans: whoever forgets it reads more."""
    requests = [[0] if step % 2 else [1 + step // 2 % 40] for step in range(600)]
    record(tmp_path / "trace", requests)
    trace = read_trace(tmp_path / "trace")
    found = choose_policy("model", 2 * EXPERT)
    others = {
        name: replay(trace, name, 2 * EXPERT).misses for name in ("lru", "lfu", "lfru", "s3fifo", "hot")
    }
    assert others[found] == min(others.values()) < max(others.values())
    assert recall(NOTES)["model"]["best"] == {"2": found}
    (tmp_path / "trace").unlink()
    assert choose_policy("model", 2 * EXPERT) == found  # remembered
    assert choose_policy("model", 9 * EXPERT) == DEFAULT  # the trace is gone


def test_a_few_tokens_do_not_choose(tmp_path: Path) -> None:
    requests = [[0] if step % 2 else [1 + step // 2 % 40] for step in range(SHORTEST - 1)]
    record(tmp_path / "trace", requests)
    assert choose_policy("model", 2 * EXPERT) == DEFAULT
    assert best_policy(read_trace(tmp_path / "trace"), 2 * EXPERT) != DEFAULT  # what it would have chosen


@pytest.mark.parametrize("text", ["", "[]", '{"model": 3}', '{"model": {"trace": "/", "best": {}}}'])
def test_damaged_notes_are_as_good_as_none(text: str) -> None:
    notes_path(NOTES).parent.mkdir(parents=True, exist_ok=True)
    notes_path(NOTES).write_text(text)
    assert choose_policy("model", EXPERT) == DEFAULT


def test_an_engine_takes_its_own_traces_word(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    synth(path, width="tiny", ratios=(0, 4, 128, 4), mix="q8_0", skew=1.5)
    budget = Engine(path, context=256).plan.smallest + (1 << 20)
    with Engine(path, context=256, memory=budget, streaming="direct", trace=tmp_path / "trace") as engine:
        assert engine.stats()["policy"] == DEFAULT
        session = engine.session()
        for token in range(40):
            session.feed([token])
        capacity = engine.plan.experts_held
    with Engine(path, context=256, memory=budget, streaming="direct") as engine:
        found = engine.stats()["policy"]
    trace = read_trace(tmp_path / "trace")
    assert replay(trace, found, capacity).misses <= replay(trace, "lru", capacity).misses
    assert recall(NOTES)[engine.fingerprint]["best"]
