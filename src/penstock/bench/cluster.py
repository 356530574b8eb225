"""How fast several machines would be: every stage played through by itself, and messages between them.

Machines are like this one, with other amounts of memory and perhaps faster or slower by a factor.  Nobody else is
asked: it is a plan, from costs that were measured here.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, Final, NamedTuple

from penstock.backend.base import Backend
from penstock.bench.costs import Costs, Curve, LayerCosts, fingerprint, kernel_costs
from penstock.bench.expectation import PROMPT, Expectation, expect
from penstock.bench.missing_weights import Handling, handling
from penstock.cluster.split import Machine, layer_bytes, model_head_layers, split
from penstock.engine.options import EngineOptions
from penstock.engine.planning import make_engine_plan
from penstock.errors import BudgetError, OptionError
from penstock.machine.measured_once import MeasuredOnce
from penstock.model import architecture
from penstock.sizes import parse_size
from penstock.storage.plan import Plan
from penstock.storage.read_speed import ReadSpeed, read_speed
from penstock.storage.source import ExpertSource
from penstock.weights.checkpoint import Checkpoint

BOUNDARY_BYTES: Final = {"bf16": 2, "f32": 4}  # of a number that crosses
HEADER: Final = 512  # bytes of a message besides
# What a message takes on both sides besides the wire, and each of its bytes: `benchmarks.cluster_links --messages`.
HANDLING: Final = 3e-4  # seconds
COPYING: Final = 1.3e-9
COMPUTE, DISK, LINK = "compute", "disk", "link"


class Link(NamedTuple):
    """Between two machines.

    >>> round(Link(1e9 / 8, 0.5e-3).seconds(125_000), 5)  # a millisecond on the wire
    0.00196
    """

    bytes_per_second: float
    latency: float  # seconds, one way
    handling: float = HANDLING
    copying: float = COPYING

    def seconds(self, nbytes: float) -> float:
        """From when one side has something to say until the other has it."""
        return self.handling + self.latency + nbytes * (self.copying + 1 / self.bytes_per_second)


class Planned(NamedTuple):
    """A machine to plan with."""

    memory: int  # bytes
    speed: float = 1.0  # times as fast as this one


def parse_machines(text: str, flag: str) -> list[Planned]:
    """ "16GiB,32GiB*2": one after another, the second twice as fast as this machine."""
    found = []
    for each in text.split(","):
        memory, star, factor = each.partition("*")
        try:
            speed = float(factor) if star else 1.0
        except ValueError:
            speed = 0.0
        if not 0.01 <= speed <= 100:
            raise OptionError(f"{flag} is {each!r}, expected an amount and a factor, such as 32GiB*2")
        found.append(Planned(parse_size(memory, flag), speed))
    return found


@dataclass(frozen=True)
class StageExpectation:
    """Some layers on one machine, and how fast they are by themselves."""

    machine: Planned
    layers: range
    plan: Plan
    expected: Expectation

    @property
    def token_seconds(self) -> float:
        return self.expected.steady.seconds / self.expected.steady.tokens

    @property
    def waiting_seconds(self) -> float:
        """Of a token, for the disk."""
        return self.expected.steady.waiting / self.expected.steady.tokens

    @property
    def binds(self) -> str:
        return DISK if self.waiting_seconds > self.token_seconds / 2 else COMPUTE

    def as_dict(self) -> dict[str, Any]:
        return {
            "layers": [self.layers.start, self.layers.stop],
            "memory": self.machine.memory,
            "speed": self.machine.speed,
            "token_seconds": self.token_seconds,
            "waiting_seconds": self.waiting_seconds,
            "plan": self.plan.as_dict(),
        }


@dataclass(frozen=True)
class ClusterExpectation:
    """All stages, and what passes between them."""

    stages: tuple[StageExpectation, ...]
    link: Link
    row_bytes: int  # that cross a boundary
    costs: Costs  # of the whole model on this machine

    def hop_seconds(self, rows: int) -> float:
        return self.link.seconds(HEADER + rows * self.row_bytes)

    @property
    def link_seconds(self) -> float:
        """Of a token: over every boundary, and back to the head."""
        hops = len(self.stages) - 1
        return hops * self.hop_seconds(1) + self.link.seconds(HEADER) if hops else 0.0

    @property
    def alone(self) -> float:
        """Tokens per second of one request."""
        return 1 / (sum(stage.token_seconds for stage in self.stages) + self.link_seconds)

    @property
    def together(self) -> float:
        """Tokens per second of as many requests as there are stages, each stage at one of them."""
        slowest = max(stage.token_seconds for stage in self.stages)
        return min(
            len(self.stages) * self.alone, 1 / max(slowest, self.row_bytes / self.link.bytes_per_second)
        )

    def prefill(self, tokens: int = PROMPT) -> float:
        """Tokens per second of a prompt, whose pieces flow through the stages."""
        chunk = self.stages[0].plan.chunk
        pieces = -(-tokens // chunk)
        by_stage = [stage.expected.prompts[tokens].seconds / pieces for stage in self.stages]
        rows = min(chunk, tokens)
        wire = rows * self.row_bytes / self.link.bytes_per_second if len(self.stages) > 1 else 0.0
        hops = (len(self.stages) - 1) * self.hop_seconds(rows)
        return tokens / (sum(by_stage) + hops + (pieces - 1) * max(*by_stage, wire))

    @property
    def binds(self) -> tuple[str, int]:
        """What takes most of a token's time, and on which stage it takes longest."""
        waiting = sum(stage.waiting_seconds for stage in self.stages)
        computing = sum(stage.token_seconds for stage in self.stages) - waiting
        parts = {COMPUTE: computing, DISK: waiting, LINK: self.link_seconds}
        slowest = max(range(len(self.stages)), key=lambda n: self.stages[n].token_seconds)
        return max(parts, key=lambda name: parts[name]), slowest

    def as_dict(self) -> dict[str, Any]:
        what, stage = self.binds
        return {
            "stages": [each.as_dict() for each in self.stages],
            "link": self.link._asdict(),
            "boundary_bytes": self.row_bytes,
            "link_seconds": self.link_seconds,
            "tokens_per_second": self.alone,
            "tokens_per_second_together": self.together,
            "prefill_tokens_per_second": self.prefill(),
            "binds": what,
            "slowest_stage": stage,
        }


def expect_cluster(
    checkpoint: Checkpoint,
    options: EngineOptions,
    backend: Backend,
    machines: Sequence[Planned],
    link: Link,
    *,
    disk: ReadSpeed | None = None,
    again: bool = False,
    say: Callable[[str], None] = lambda _: None,
) -> ClusterExpectation:
    """disk: its speed, for a model that is on none; else that of its own, which every machine is taken to have.

    Raises BudgetError if a machine has not enough memory for its layers, and ClusterError if there are more machines
    than layers."""
    notes = MeasuredOnce("machine", fingerprint(backend), again, say)
    costs = kernel_costs(checkpoint, backend, notes)
    misses = Handling() if disk else handling(checkpoint, backend, notes)
    disk = disk or read_speed(ExpertSource(checkpoint), backend, notes)
    usual = [Machine(f"machine {n}", None, m.memory, 1 / m.speed) for n, m in enumerate(machines, 1)]
    tiles = split(usual, layer_bytes(checkpoint), model_head_layers(checkpoint))
    stages: list[StageExpectation] = []
    context, chunk = options.context, options.prefill_chunk
    for (_, (layers,)), machine in zip(tiles, machines, strict=True):
        part, chosen = checkpoint.slice(layers), replace(options, memory=machine.memory)
        try:
            plan, tokens = make_engine_plan(part, chosen, backend, context, chunk=chunk)
        except BudgetError as error:
            raise BudgetError(
                f"stage {len(stages) + 1}, layers {layers.start}:{layers.stop}: {error}"
            ) from None
        context, chunk = context or min(tokens, checkpoint.config.context_length), chunk or plan.chunk
        own = costs_of(costs, layers, part.is_last, machine.speed)
        expected = expect(part, plan, own, disk, handling=misses)
        stages.append(StageExpectation(machine, layers, plan, expected))
    shape = architecture(checkpoint.config).boundary(checkpoint.config)
    return ClusterExpectation(tuple(stages), link, prod(shape) * BOUNDARY_BYTES[options.boundary], costs)


def costs_of(costs: Costs, layers: range, last: bool, speed: float) -> Costs:
    """Of some layers, on a machine that is so many times as fast."""

    def curve(found: Curve) -> Curve:
        return Curve(found.rows, tuple(seconds / speed for seconds in found.seconds))

    def scaled(layer: LayerCosts) -> LayerCosts:
        found: dict[str, Any] = {
            name: curve(each) if isinstance(each, Curve) else each / speed
            for name, each in layer._asdict().items()
        }
        return LayerCosts(**found)

    own = tuple(scaled(layer) for layer in costs.layers[layers.start : layers.stop])
    head, token = (costs.head / speed, costs.token) if last else (0.0, 0.0)
    return Costs(own, head, curve(costs.step), token)
