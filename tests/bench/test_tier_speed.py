"""The speed to expect of a model in tiers: what binds, and what more memory is worth."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from penstock.bench.tier_speed import (
    FOUND,
    LEARNED,
    UNKNOWN,
    InTiers,
    device_share,
    expect_routing,
    expect_with,
)
from penstock.engine.options import EngineOptions
from penstock.engine.planning import make_engine_plan
from penstock.storage.plan import Plan
from penstock.storage.policy_choice import DEFAULT
from penstock.storage.tiers.counters import TierCounters
from penstock.storage.tiers.division import Division, Times
from penstock.storage.tiers.pace import USUAL, Pace, Pacer, Routing, note_routing
from penstock.storage.tiers.placement import Placement
from penstock.storage.tiers.plan import memory_share
from penstock.storage.usage import Usage, learn_usage
from penstock.weights.checkpoint import Checkpoint
from penstock.weights.imagined import imagine
from penstock.weights.synth import stored_type
from penstock.weights.widths import WIDTHS
from tests.storage.tiers.double import Double

GIB = 1 << 30
H200 = Times(143e-6, (99e-6, 350e-6, 1.4e-3), call=46e-6)  # of an expert, beside sixteen cores
PACE = Pace(6.5e-3, 67e-6)


@pytest.fixture(scope="module")
def flash() -> Checkpoint:
    return imagine(WIDTHS["flash"].whole(), lambda each: stored_type(each, "q2"))


def planned(flash: Checkpoint, vram: int, memory: int | None = None) -> Plan:
    chosen = EngineOptions(device="cuda", vram=vram * GIB, memory=memory, draft="off")
    plan, _ = make_engine_plan(flash, chosen, Double(32), 4096)
    assert plan.tiers is not None
    return replace(plan, tiers=replace(plan.tiers, whole=memory is None))


def test_more_memory_on_the_card_is_faster(flash: Checkpoint) -> None:
    found = [expect_with(flash, planned(flash, vram), H200, PACE) for vram in (12, 24, 48)]
    speeds = [each.tokens_per_second for each in found]
    assert speeds == sorted(speeds)
    assert found[0].device < found[1].device < found[2].device


def test_the_processors_are_worth_their_share(flash: Checkpoint) -> None:
    plan = planned(flash, 12)
    shared, alone = (expect_with(flash, plan, H200, PACE, exact=exact) for exact in (False, True))
    assert shared.tokens_per_second > 1.25 * alone.tokens_per_second
    assert alone.binds == "the link"
    assert alone.seconds["the processors"] == 0


def test_a_slow_disk_binds(flash: Checkpoint) -> None:
    plan = planned(flash, 16, 32 * GIB)
    found = expect_with(flash, plan, H200._replace(disk=2e-3), PACE)
    assert found.binds == "the disk"
    assert 0 < found.memory < 1
    assert found.tokens_per_second <= 1 / found.seconds["the disk"]


def test_what_is_guessed_saves_waiting(flash: Checkpoint) -> None:
    plan = planned(flash, 24)
    none, some = (expect_with(flash, plan, H200, PACE, Routing(1.0, 1.0, guessed)) for guessed in (0.0, 0.3))
    assert some.device == pytest.approx(none.device + 0.3 * (1 - none.device))
    assert some.tokens_per_second > none.tokens_per_second


def test_experts_on_disk_are_not_guessed_to_the_card(flash: Checkpoint) -> None:
    plan, times = planned(flash, 16, 32 * GIB), H200._replace(disk=2e-3)
    none, some = (expect_with(flash, plan, times, PACE, Routing(0.9, 1.0, guessed)) for guessed in (0.0, 0.3))
    assert none == some


def test_what_is_preferred_is_held(flash: Checkpoint) -> None:
    """By the card, by memory, and the disk has the rest."""
    plan, times = planned(flash, 16, 32 * GIB), H200._replace(disk=2e-3)
    card = device_share(flash, plan)
    memory = memory_share(plan, card)
    for power in (1.0, 0.5):
        found = expect_with(flash, plan, times, PACE, Routing(power, power, 0.0))
        assert found.device == pytest.approx(card**power)
        assert found.memory == pytest.approx((1 - card**power) * memory**power)


def test_a_routing_is_what_a_run_found_or_what_was_learned_or_usual(
    flash: Checkpoint, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    plan, config, model = planned(flash, 24), flash.config, flash.fingerprint()
    assert expect_routing(flash, plan, learned=True) == (USUAL, UNKNOWN)
    counts = np.ones((config.layer_count, config.experts), np.float32)
    counts[:, :40] = 1000
    learn_usage(model, Usage(counts, answers=1e6, foretold=9e5, found=9e5))
    routing, basis = expect_routing(flash, plan, learned=True)
    assert basis == LEARNED
    assert device_share(flash, plan) ** routing.device > 0.9
    assert expect_routing(flash, plan, learned=False) == (USUAL, UNKNOWN)
    note_routing(model, Routing(0.7, 1.0, 0.1))
    assert expect_routing(flash, plan, learned=True) == (Routing(0.7, 1.0, 0.1), FOUND)


def pretend(
    flash: Checkpoint, plan: Plan, monkeypatch: pytest.MonkeyPatch, skew: float
) -> tuple[float, Pacer]:
    """Tokens per second of answers whose experts are drawn by Zipf's law, if all else went as it should."""
    tiers, config, counters = plan.tiers, flash.config, TierCounters()
    assert tiers is not None
    (kind,) = tiers.kinds
    layers, experts, used = config.layer_count, config.experts, config.experts_used
    clock, rng = [0.0], np.random.default_rng(1)
    monkeypatch.setattr("penstock.storage.tiers.pace.time.perf_counter", lambda: clock[0])
    placement = Placement(
        DEFAULT, kind.slots, Division(H200), counters, blocks=layers, experts=experts, used=used
    )
    chances = np.arange(1, experts + 1) ** -skew
    orders = [rng.permutation(experts) for _ in range(layers)]
    pacer, begin, tokens = Pacer(counters, layers), 0.0, 400
    for token in range(tokens):
        begin = clock[0] if token == tokens // 2 else begin
        for block, order in enumerate(orders):
            pacer.turn(block, 1)
            asked: Iterable[int] = rng.choice(order, used, replace=False, p=chances / chances.sum())
            before = counters.expected_seconds
            placement.turn(block, sorted(map(int, asked)), 1)
            placement.settle()
            waited = counters.expected_seconds - before + PACE.turn
            counters.host_stall_seconds += waited
            clock[0] += waited + PACE.device / layers
    return tokens / 2 / (clock[0] - begin), pacer


@pytest.mark.parametrize("skew", [0.0, 1.0])
def test_a_plan_expects_what_a_run_has_found(
    flash: Checkpoint, monkeypatch: pytest.MonkeyPatch, skew: float
) -> None:
    """With the same budget, and with another."""
    small, large = planned(flash, 12), planned(flash, 24)
    (slow, pacer), (fast, _) = (pretend(flash, plan, monkeypatch, skew) for plan in (small, large))
    routing, pace = pacer.routing(device_share(flash, small), 1.0), pacer.pace
    assert routing is not None
    assert pace is not None
    for plan, speed, within in ((small, slow, 0.05), (large, fast, 0.15)):
        expected = expect_with(flash, plan, H200, pace, routing).tokens_per_second
        assert expected == pytest.approx(speed, rel=within)


def test_shares_of_the_tiers_are_at_most_all(flash: Checkpoint) -> None:
    found: InTiers = expect_with(flash, planned(flash, 24), H200, PACE)
    assert found.device + found.memory == pytest.approx(1)
    assert 30 < found.tokens_per_second < 60
