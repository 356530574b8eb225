"""Plans: everything has its place, nothing is promised twice, and the impossible is refused with what is possible."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import BudgetError
from penstock.machine.memory import Memory
from penstock.storage.dense import BUFFERS
from penstock.storage.plan import CHUNKS, LENGTHS, RESERVED, Needs, Plan, Sizes, make_plan, plan_for_context
from penstock.weights.checkpoint import Checkpoint
from penstock.weights.opening import open_checkpoint
from penstock.weights.synth import plan_synth, write_synth

MIB = 1 << 20
NEEDS = Needs(base=10 * MIB, state=2 * MIB, work=lambda rows: MIB + 4096 * rows)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    path: Path = tmp_path_factory.mktemp("plans") / "m.gguf"
    write_synth(plan_synth(width="tiny", ratios=(0, 4, 128, 4) * 4, mix="f16", vocab=20_000), path)
    return open_checkpoint(path)


@pytest.fixture(scope="module")
def sizes(model: Checkpoint) -> Sizes:
    return Sizes(model)


def plan(model: Checkpoint, sizes: Sizes, budget: int | None, **options: object) -> Plan:
    return make_plan(model, NEEDS, budget=budget, sizes=sizes, **options)  # type: ignore[arg-type]


def least(model: Checkpoint, sizes: Sizes) -> int:
    return plan(model, sizes, None).smallest


@settings(deadline=None, max_examples=60)
@given(extra=st.integers(0, 120 * MIB))
def test_a_plan_keeps_its_budget_and_uses_it(model: Checkpoint, sizes: Sizes, extra: int) -> None:
    found = plan(model, sizes, least(model, sizes) + extra, mode="direct")
    assert found.budget is not None
    assert found.total <= found.budget
    whole = found.experts_held == found.experts_total
    # What is left over is less than the next thing that could have had it.
    assert whole or found.budget - found.total < max(sizes.blocks.values()) + sizes.head + found.expert_bytes
    assert found.experts_held >= 2 * model.config.experts_used * found.expert_bytes
    staying = sum(size for block, size in sizes.blocks.items() if block not in found.streamed)
    assert found.dense_held == staying + (0 if found.slice_head else sizes.head)
    assert len(found.streamed) != 1
    assert not found.streamed or len(found.streamed) > BUFFERS  # else they could as well stay
    assert found.chunk in CHUNKS


@settings(deadline=None, max_examples=30)
@given(small=st.integers(0, 80 * MIB), more=st.integers(0, 40 * MIB))
def test_more_memory_never_means_more_reading(model: Checkpoint, sizes: Sizes, small: int, more: int) -> None:
    bottom = least(model, sizes) + small
    first, second = (
        plan(model, sizes, budget, mode="direct", chunk=32) for budget in (bottom, bottom + more)
    )
    assert second.dense_held >= first.dense_held
    if second.dense_held == first.dense_held:
        assert second.experts_held + second.ahead >= first.experts_held + first.ahead


def test_below_the_smallest(model: Checkpoint, sizes: Sizes) -> None:
    bottom = least(model, sizes)
    assert plan(model, sizes, bottom).total <= bottom
    with pytest.raises(BudgetError, match=f"needs {bottom / MIB:.0f} MiB at least"):
        plan(model, sizes, bottom - 1)


def test_modes(model: Checkpoint, sizes: Sizes) -> None:
    everything = plan(model, sizes, None)
    assert everything.mode == "mmap"
    assert plan(model, sizes, 1 << 40).mode == "mmap"
    assert plan(model, sizes, 1 << 40, mode="resident").experts_held == everything.experts_total
    assert plan(model, sizes, least(model, sizes)).mode == "direct"
    with pytest.raises(BudgetError, match="'direct' works from"):
        plan(model, sizes, least(model, sizes), mode="mmap")


def test_streamed_blocks_are_spread(model: Checkpoint, sizes: Sizes) -> None:
    bottom = least(model, sizes)
    found = next(
        plan(model, sizes, bottom + extra * MIB, mode="direct")
        for extra in range(1, 60)
        if 0 < len(plan(model, sizes, bottom + extra * MIB, mode="direct").streamed) <= 8
    )
    numbers = [int(block.removeprefix("blk.")) for block in found.streamed]
    apart = {after - before for before, after in pairwise(numbers)}
    assert max(apart) - min(apart) <= 1


def test_what_sessions_may_take(model: Checkpoint, sizes: Sizes) -> None:
    found = plan(model, sizes, least(model, sizes) + 4 * MIB, mode="direct")
    assert found.budget is not None
    assert found.most_state is not None
    given_up = found.experts_held - found.experts_fewest
    assert found.most_state == found.state + given_up + found.budget - found.total
    assert plan(model, sizes, None).most_state is None


@pytest.mark.parametrize("budget", [0, 2 * MIB, 60 * MIB, 1 << 40])
def test_a_context_that_nobody_asked_for_is_short_and_may_grow(
    model: Checkpoint, sizes: Sizes, budget: int
) -> None:
    def needs(length: int) -> Needs:
        return replace(NEEDS, state=MIB + 700 * length)

    memory = Memory(total=1 << 40, available=1 << 40, swap=0)
    options = {"mode": "auto", "chunk": None, "memory": memory}
    start = plan(model, sizes, None).smallest - NEEDS.state + needs(RESERVED).state
    short, longest = plan_for_context(model, needs, budget=start + budget, context=None, **options)  # type: ignore[arg-type]
    assert short.state == needs(RESERVED).state
    assert RESERVED <= longest <= model.config.context_length
    assert make_plan(model, needs(longest), budget=start + budget, chunk=short.chunk).total <= start + budget
    if longest < model.config.context_length:
        with pytest.raises(BudgetError):
            make_plan(model, needs(longest + LENGTHS), budget=start + budget, chunk=short.chunk)
    given, tokens = plan_for_context(model, needs, budget=start + budget, context=2048, **options)  # type: ignore[arg-type]
    assert (tokens, given.state) == (2048, needs(2048).state)
