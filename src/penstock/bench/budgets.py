"""One model in several budgets of memory: what stays, and how fast it would be."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from penstock.backend.base import Backend
from penstock.bench.expected import Expected, expect_here
from penstock.engine.options import EngineOptions
from penstock.engine.planning import plan_engine
from penstock.errors import BudgetError
from penstock.sizes import speed, write_amount
from penstock.storage.plan import Plan
from penstock.storage.read_speed import ReadSpeed
from penstock.weights.checkpoint import Checkpoint

COLUMNS = (
    "memory",
    "dense weights held",
    "experts held",
    "decode, tok/s",
    "prefill 512, tok/s",
    "waits for the disk",
)


@dataclass(frozen=True)
class Budget:
    """problem: why it does not work; else there is a plan, and what to expect of it."""

    memory: int
    problem: str = ""
    plan: Plan | None = None
    expected: Expected | None = None

    def cells(self) -> list[str]:
        """By column."""
        first = write_amount(self.memory)
        if self.plan is None or self.expected is None:
            return [first, self.problem, "", "", "", ""]
        steady = self.expected.steady
        return [
            first,
            f"{self.plan.dense_held / self.plan.dense:.0%}",
            f"{self.plan.experts_held / self.plan.experts_total:.0%}",
            speed(steady.per_second),
            speed(self.expected.prefill.per_second),
            f"{steady.waiting / steady.seconds:.0%}",
        ]

    def as_dict(self) -> dict[str, Any]:
        if self.plan is None or self.expected is None:
            return {"memory": self.memory, "problem": self.problem}
        return {"memory": self.memory} | self.plan.as_dict() | self.expected.as_dict()


def budgets(
    checkpoint: Checkpoint,
    options: EngineOptions,
    backend: Backend,
    amounts: Sequence[int],
    disk: ReadSpeed | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Iterator[Budget]:
    """disk: as `expect_here` wants it, for a model that is not here."""
    for amount in amounts:
        try:
            model, plan, _ = plan_engine(
                checkpoint, replace(options, memory=amount), backend, options.context
            )
        except BudgetError as error:
            yield Budget(amount, problem=str(error))
        else:
            learned = options.learn == "on"
            yield Budget(
                amount, "", plan, expect_here(model, plan, backend, disk=disk, learned=learned, say=say)
            )
