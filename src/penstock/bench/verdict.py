"""What a machine is to a model, in a few sentences: how it fits, how fast it is, and what would help most."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

from penstock.backend.base import Backend
from penstock.backend.device import DeviceBackend
from penstock.bench.device_speed import expect_on_device
from penstock.bench.expected import Expected, expect_here
from penstock.bench.tier_speed import InTiers, expect_in_tiers
from penstock.engine.options import EngineOptions
from penstock.engine.planning import plan_engine
from penstock.errors import BudgetError
from penstock.machine.memory import read_memory
from penstock.sizes import speed, write_amount
from penstock.storage.plan import Plan
from penstock.weights.checkpoint import Checkpoint
from penstock.weights.imagined import imagine
from penstock.weights.synth import stored_type

WORTH: Final = 1.15  # times as fast, below which nobody would notice
SMALLEST_MIX: Final = "q2"


@dataclass(frozen=True)
class Verdict:
    """fits: "resident", "streams" or "not"; help: what would make it how many times as fast, the best first."""

    fits: str
    sentences: tuple[str, ...]
    tokens_per_second: float | None = None
    prefill_tokens_per_second: float | None = None
    help: tuple[tuple[str, float], ...] = ()

    def as_dict(self) -> dict[str, Any]:
        return dict(vars(self))


def judge_model(
    checkpoint: Checkpoint,
    options: EngineOptions,
    backend: Backend,
    again: bool = False,
    say: Callable[[str], None] = lambda _: None,
) -> Verdict:
    """With the memory that these options give it."""
    memory = read_memory()

    def planned(model: Checkpoint, budget: int | None) -> tuple[Checkpoint, Plan]:
        chosen = options if budget is None else replace(options, memory=budget)
        return plan_engine(model, chosen, backend, options.context, memory)[:2]

    whole = checkpoint
    try:
        checkpoint, plan = planned(whole, None)
    except BudgetError as error:
        return Verdict("not", (f"It does not fit: {error}.", "More memory is all that helps."))
    if isinstance(backend, DeviceBackend):
        if plan.tiers is not None:
            there = expect_in_tiers(checkpoint, plan, backend, options, again=again, say=say)
            return _in_tiers(plan, backend, there)
        return _on_device(plan, backend)
    expected = expect_here(checkpoint, plan, backend, learned=options.learn == "on", again=again, say=say)
    helps = sorted(_helps(whole, checkpoint, plan, expected, backend, planned), key=lambda each: -each[1])
    sentences = [_fitting(plan), _speed(plan, expected), _help(plan, helps)]
    return Verdict(
        "streams" if plan.mode == "direct" else "resident",
        tuple(sentences),
        expected.steady.per_second,
        expected.prefill.per_second,
        tuple(helps),
    )


def _on_device(plan: Plan, backend: DeviceBackend) -> Verdict:
    most = expect_on_device(plan, backend).tokens_per_second
    sentences = (
        f"It fits {backend.description}: {write_amount(plan.total)} there, with everything that it needs.",
        f"Expect {speed(most)} tokens/s at most, as fast as the GPU's memory is read.",
    )
    return Verdict("resident", sentences, most)


def _in_tiers(plan: Plan, backend: DeviceBackend, expected: InTiers) -> Verdict:
    tiers = plan.tiers
    assert tiers is not None
    others = "the others are in memory" if tiers.whole else "the others are in memory and on disk"
    held = plan.experts_held / plan.experts_total
    sentences = (
        f"It does not fit {backend.description}: {held:.0%} of the experts are there, {others}.",
        f"Expect about {speed(expected.tokens_per_second)} tokens/s, bound by {expected.binds}.",
    )
    most = expected.prefill_tokens_per_second
    return Verdict("streams", sentences, expected.tokens_per_second, most)


def _helps(
    whole: Checkpoint,
    checkpoint: Checkpoint,
    plan: Plan,
    expected: Expected,
    backend: Backend,
    planned: Callable[[Checkpoint, int | None], tuple[Checkpoint, Plan]],
) -> list[tuple[str, float]]:
    """What would be faster, and how many times; only where something has to come from a disk.  whole: the model as it
    lies there, before it was planned"""
    if plan.mode != "direct" or plan.budget is None:
        return []

    def times(model: Checkpoint, other: Plan, disk_speed: float = 1.0) -> float:
        disk = expected.disk._replace(bytes_per_second=disk_speed * expected.disk.bytes_per_second)
        found = expect_here(model, other, backend, disk=disk, misses=expected.handling)
        return found.steady.per_second / before.steady.per_second

    # Without what was learned, as the others are.
    before = expect_here(checkpoint, plan, backend, disk=expected.disk, misses=expected.handling)
    found = [
        (
            f"twice the memory, {write_amount(2 * plan.budget)}",
            times(*planned(whole, 2 * plan.budget)),
        ),
        (
            f"a disk that reads {2 * expected.disk.bytes_per_second / 1e9:.1f} GB/s",
            times(checkpoint, plan, 2.0),
        ),
    ]
    smaller = imagine(checkpoint.config, lambda each: stored_type(each, SMALLEST_MIX))
    size, least = (sum(info.total_bytes for info in each.index.values()) for each in (checkpoint, smaller))
    if size > 1.3 * least:
        name = f"the same model in two bits, {write_amount(least)} instead of {write_amount(size)}"
        found.append((name, times(*planned(smaller, plan.budget))))
    return found


def _fitting(plan: Plan) -> str:
    if plan.mode != "direct":
        return (
            f"It fits: all of it stays in memory, {write_amount(plan.total)} with everything that it needs."
        )
    share = plan.experts_held / plan.experts_total
    dense = (
        "all weights that every token needs"
        if not plan.streamed and not plan.slice_head
        else (f"{write_amount(plan.dense_held)} of the {write_amount(plan.dense)} that every token needs")
    )
    return f"It streams in {write_amount(plan.budget or 0)}: {dense} and {share:.0%} of the experts stay in memory."


def _speed(plan: Plan, expected: Expected) -> str:
    decode, prefill = expected.steady.per_second, expected.prefill.per_second
    begin = (
        f", {speed(expected.first.per_second)} at first" if expected.first.per_second < 0.9 * decode else ""
    )
    sentence = (
        f"Expect {speed(decode)} tokens/s{begin}, and {speed(prefill)} tokens/s while it reads a prompt"
    )
    if plan.mode != "direct":
        return f"{sentence}."
    return f"{sentence}; {expected.steady.waiting / expected.steady.seconds:.0%} of the time it waits for the disk."


def _help(plan: Plan, helps: list[tuple[str, float]]) -> str:
    useful = [f"{what} ({times:.1f} times as fast)" for what, times in helps if times >= WORTH]
    if useful:
        return f"What would help most: {', then '.join(useful)}."
    if plan.mode != "direct":
        return "What would help: more cores and faster memory, for nothing has to come from the disk."
    return "What would help: a faster processor; neither more memory nor a faster disk would be noticed."
