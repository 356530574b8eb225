"""The speed to expect of a model in tiers: what binds, and what more memory is worth."""

from dataclasses import replace

import pytest

from penstock.bench.tier_speed import InTiers, expect_with
from penstock.engine.options import EngineOptions
from penstock.engine.planning import make_engine_plan
from penstock.storage.plan import Plan
from penstock.storage.tiers.division import Times
from penstock.storage.tiers.pace import Pace
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
    shared, alone = (expect_with(flash, plan, H200, PACE, exact) for exact in (False, True))
    assert shared.tokens_per_second > 1.25 * alone.tokens_per_second
    assert alone.binds == "the link"
    assert alone.seconds["the processors"] == 0


def test_a_slow_disk_binds(flash: Checkpoint) -> None:
    plan = planned(flash, 16, 32 * GIB)
    found = expect_with(flash, plan, H200._replace(disk=2e-3), PACE)
    assert found.binds == "the disk"
    assert 0 < found.memory < 1
    assert found.tokens_per_second <= 1 / found.seconds["the disk"]


def test_shares_of_the_tiers_are_at_most_all(flash: Checkpoint) -> None:
    found: InTiers = expect_with(flash, planned(flash, 24), H200, PACE)
    assert found.device + found.memory == pytest.approx(1)
    assert 30 < found.tokens_per_second < 60
