"""A model in three tiers: the same answer wherever experts are, budgets kept, errors without a trace."""

from errno import EIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.bench.tier_speed import FOUND, UNKNOWN, InTiers, expect_routing, expect_with
from penstock.engine.engine import Engine
from penstock.engine.sampling import Sampling
from penstock.errors import BudgetError, DeviceFullError, ReadError
from penstock.storage.policy_choice import DEFAULT
from penstock.storage.tiers import opening
from penstock.storage.tiers.division import Times
from penstock.storage.tiers.host import StreamedTier
from penstock.storage.tiers.pace import Pace
from penstock.storage.tiers.replay import Slots, replay_tiers
from penstock.storage.trace import read_trace
from penstock.weights.synth import synth
from tests.storage.tiers.double import Double, Logits, open_double, smallest_vram

PROMPT = [(7 * number + 3) % 256 for number in range(90)]
MIB = 1 << 20
TIMES = Times(1e-4, (2e-4, 8e-4, 3.2e-3), disk=1e-3)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("tiers") / "m.gguf"
    synth(path, width="tiny", ratios=(0, 4, 128, 4), hash_layers=1, mix="q8_0", skew=1.0)
    return path


def answers(engine: Engine) -> Logits:
    """Logits of a prompt, of tokens after it, and of two sessions that go on together."""
    first, second = engine.session(), engine.session()
    found = [first.feed(PROMPT, logits="all"), second.feed(PROMPT[:40], logits="all")]
    for token in range(6):
        found += engine.feed([(first, [token + 5]), (second, [3 * token + 1, token])], logits="all")
    return np.concatenate([part for part in found if part is not None])


@pytest.fixture(scope="module")
def expected(model: Path) -> Logits:
    with Engine(model, device="cpu", context=256, threads=1) as engine:
        return answers(engine)


@pytest.fixture(scope="module")
def least(model: Path) -> int:
    return smallest_vram(model, Double())


def tiered(monkeypatch: pytest.MonkeyPatch, model: Path, vram: int, **options: Any) -> tuple[Engine, Double]:
    device = Double()
    engine = open_double(monkeypatch, model, device, vram=vram, **options)
    assert engine.plan.mode == "tiers"
    return engine, device


@pytest.mark.parametrize("extra", [0, 1, 3])
@pytest.mark.parametrize("memory", [None, "small", "out of reach"])
def test_exact_gives_the_same_bits_whatever_the_tiers_hold(
    monkeypatch: pytest.MonkeyPatch, model: Path, expected: Logits, least: int, extra: int, memory: str | None
) -> None:
    options: dict[str, Any] = {"exact": True, "memory": (2 << 30) + 4 * MIB if memory == "small" else None}
    monkeypatch.setattr(Double, "reaches_host", memory is None)
    engine, _ = tiered(monkeypatch, model, least + extra * MIB // 2, **options)
    with engine:
        assert engine.plan.tiers is not None
        assert engine.plan.tiers.whole == (memory != "small")
        assert np.array_equal(answers(engine), expected)
        assert np.array_equal(answers(engine), expected)
        stats = engine.stats()
    assert stats["on_host"] == 0
    assert stats["device_hits"] > 0


@pytest.mark.parametrize("policy", ["lru", "lfru", "hot"])
@pytest.mark.parametrize("memory", [None, (2 << 30) + 3 * MIB])
def test_the_answer_hardly_depends_on_who_computes(
    monkeypatch: pytest.MonkeyPatch,
    model: Path,
    expected: Logits,
    least: int,
    policy: str,
    memory: int | None,
) -> None:
    engine, device = tiered(monkeypatch, model, least + 3 * MIB, memory=memory, policy=policy)
    with engine:
        found = answers(engine)
        stats = engine.stats()
    assert np.abs(found - expected).max() < 1e-3 * (expected.max() - expected.min())
    assert stats["on_host"] > 0
    assert stats["copied"] > 0
    assert stats["passed"] > 0
    assert (stats["disk_reads"] > 0) == (memory is not None)
    assert stats["device_misses"] == stats["copied"] + stats["passed"] + stats["on_host"]
    assert not device.pinned or memory is not None  # a mapped file is let go, slots go with the process


@pytest.mark.parametrize("memory", [None, (2 << 30) + 2 * MIB, (2 << 30) + 5 * MIB])
@pytest.mark.parametrize("exact", [True, False])
def test_a_replay_counts_what_the_engine_counted(
    monkeypatch: pytest.MonkeyPatch, model: Path, least: int, tmp_path: Path, memory: int | None, exact: bool
) -> None:
    path = tmp_path / "m.trace"
    engine, _ = tiered(
        monkeypatch, model, least + 3 * MIB, memory=memory, exact=exact, trace=path, sessions=2, context=128
    )
    with engine:
        answers(engine)
        tiers, plan = engine.storage.tiers, engine.plan.tiers
        assert tiers is not None
        assert plan is not None
        tiers.experts.settle()
        counted, division = tiers.experts.counters.outcome, tiers.experts.division
    slots = [
        Slots(kind.blocks, kind.slots, kind.long_slots, kind.passing, engine.plan.chunk, kind.step)
        for kind in plan.kinds
    ]
    found = replay_tiers(
        read_trace(path), DEFAULT, slots, None if plan.whole else plan.held, division
    ).outcome
    for each in (found, counted):
        del each["link_bytes"]  # a file's experts have other sizes than slots have
    assert found == counted
    assert counted["device_hits"] > 0


def test_a_restart_begins_with_what_was_used_most(
    monkeypatch: pytest.MonkeyPatch, model: Path, expected: Logits, least: int
) -> None:
    """The device has the first of them, memory the next ones, and nobody reads any of them again."""
    options: dict[str, Any] = {"memory": (2 << 30) + 4 * MIB, "learn": "on", "exact": True}
    for run in range(2):
        engine, _ = tiered(monkeypatch, model, least, **options)
        with engine:
            tiers = engine.storage.tiers
            assert tiers is not None
            host = tiers.experts.host
            assert isinstance(host, StreamedTier)
            device = {key for each in tiers.experts.placements for key in each.slot_of}
            memory = {key for key in range(4 * 16) if key in host.store.cache}
            assert bool(device) == bool(memory) == (run > 0)
            assert not device & memory
            if run:
                assert len(device) == tiers.experts.placements[0].cache.capacity
                heat = engine.storage.learning
                assert heat is not None
                assert heat.known is not None
                favourites = heat.known.favourites()
                assert {*favourites[: len(device)]} == device
                assert {*favourites[len(device) : len(device) + len(memory)]} == memory
            assert np.array_equal(answers(engine), expected)
            for _ in range(6):
                answers(engine)


@pytest.mark.parametrize("memory", [None, (2 << 30) + 3 * MIB])
def test_a_plan_expects_to_find_what_the_last_run_found(
    monkeypatch: pytest.MonkeyPatch, model: Path, least: int, memory: int | None
) -> None:
    """With another budget too."""
    monkeypatch.setattr(opening, "measure_division", lambda *_: TIMES)
    found: list[tuple[InTiers, dict[str, Any]]] = []
    for extra in (2, 2, 4):
        engine, _ = tiered(monkeypatch, model, least + extra * MIB, memory=memory)
        checkpoint, plan = engine.checkpoint, engine.plan
        with engine:
            expected, basis = expect_routing(checkpoint, plan, learned=False)
            list(engine.generate([1, 2, 3], 120, Sampling(temperature=1.0, seed=1, ignore_eos=True)))
            stats = engine.stats()
        assert basis == (FOUND if found else UNKNOWN)
        found.append((expect_with(checkpoint, plan, TIMES, Pace(1e-3, 0.0), expected), stats))
    for shares, stats in found[1:]:
        asked = stats["device_hits"] + stats["device_misses"]
        assert shares.device == pytest.approx(stats["device_hits"] / asked, abs=0.05)
        assert shares.memory == pytest.approx(stats["memory_hits"] / asked, abs=0.05)


def test_a_read_that_fails_leaves_nothing_half_done(
    monkeypatch: pytest.MonkeyPatch, model: Path, expected: Logits, least: int
) -> None:
    engine, _ = tiered(monkeypatch, model, least + MIB // 2, memory=(2 << 30) + 2 * MIB, exact=True)
    with engine:
        session, reader = engine.session(), engine.storage.reader
        session.feed(PROMPT[:40])
        assert reader is not None
        failed = 0
        for token in range(6):
            reader.inject(EIO, reader.open(model), 1000)
            try:
                session.feed([token])
                session.rewind(1)
            except ReadError:
                failed += 1
        reader.inject(0, reader.open(model), 0)
        assert failed
        assert np.array_equal(answers(engine), expected)


def test_slots_that_another_program_needs_are_given_up(
    monkeypatch: pytest.MonkeyPatch, model: Path, expected: Logits, least: int
) -> None:
    engine, device = tiered(monkeypatch, model, least + 2 * MIB, exact=True)
    with engine:
        tiers = engine.storage.tiers
        assert tiers is not None
        assert np.array_equal(answers(engine), expected)
        before = tiers.stats()["slots"]
        assert tiers.experts.shrink()
        assert tiers.stats()["slots"] < before
        assert device.slots[0].count < before
        assert np.array_equal(answers(engine), expected)
        while tiers.experts.shrink():
            pass
        assert tiers.stats()["slots"] == tiers.experts.pools[0].kind.fewest
        assert np.array_equal(answers(engine), expected)


def test_a_device_that_is_full_makes_experts_give_way(
    monkeypatch: pytest.MonkeyPatch, model: Path, expected: Logits, least: int
) -> None:
    """Another program has taken memory: the step is tried again with fewer slots."""
    engine, device = tiered(monkeypatch, model, least + 2 * MIB, exact=True)
    with engine:
        full = iter([True])
        forward = engine.runner.model.forward

        def fails_first(*given: Any) -> Any:
            if next(full, False):
                raise DeviceFullError("pretended")
            return forward(*given)

        monkeypatch.setattr(engine.runner.model, "forward", fails_first)
        assert np.array_equal(answers(engine), expected)
        tiers = engine.storage.tiers
        assert tiers is not None
        assert tiers.stats()["slots"] < tiers.experts.pools[0].kind.slots
    assert device.slots[0].count == tiers.stats()["slots"]


def test_experts_give_way_to_sessions_that_grow(
    monkeypatch: pytest.MonkeyPatch, model: Path, least: int
) -> None:
    engine, device = tiered(monkeypatch, model, least + 2 * MIB, exact=True)
    with engine:
        assert engine.storage.tiers is not None
        sessions = [engine.session() for _ in range(3)]
        for session in sessions:
            session.feed(PROMPT)
        grown = engine.storage.tiers.stats()["slots"]
        plan = engine.plan
        assert plan.tiers is not None
        assert grown < plan.tiers.slots
        needed = 3 * engine.state_bytes(len(PROMPT))
        given = (plan.tiers.slots - grown) * plan.tiers.kinds[0].slot_bytes
        assert plan.total - plan.state + needed - given <= least + 2 * MIB
    assert device.limits == [plan.most_state]


def test_a_map_says_where_experts_are(monkeypatch: pytest.MonkeyPatch, model: Path, least: int) -> None:
    engine, _ = tiered(monkeypatch, model, least + MIB, memory=(2 << 30) + 3 * MIB)
    with engine:
        answers(engine)
        found = engine.expert_map()
    assert found is not None
    assert found.tiers is not None
    assert {0, 1, 2} == set(found.tiers.ravel().tolist())
    assert np.array_equal(found.present, found.tiers > 0)


def test_both_budgets_are_promises(monkeypatch: pytest.MonkeyPatch, model: Path, least: int) -> None:
    for extra in (0, MIB, 3 * MIB):
        engine, _ = tiered(monkeypatch, model, least + extra, memory=(2 << 30) + 3 * MIB)
        with engine:
            plan, tiers = engine.plan, engine.storage.tiers
            assert plan.tiers is not None
            assert tiers is not None
            assert plan.total <= least + extra
            assert plan.total + plan.tiers.long_work - sum(
                (kind.slots - kind.long_slots) * kind.slot_bytes for kind in plan.tiers.kinds
            ) <= (least + extra)
            assert plan.tiers.total <= (2 << 30) + 3 * MIB
            answers(engine)
            host = tiers.experts.host
            assert isinstance(host, StreamedTier)
            assert host.store.memory.slots.held <= plan.tiers.held + plan.tiers.ahead
    with pytest.raises(BudgetError, match="of the GPU's memory"):
        tiered(monkeypatch, model, least - MIB)
    with pytest.raises(BudgetError, match="beside the GPU"):
        tiered(monkeypatch, model, least, memory=2 << 30)
