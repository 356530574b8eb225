"""Whether expert workers would be of use: what they save of every layer, against the messages that it takes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from penstock.bench.cluster import HEADER, ClusterExpectation, Link, Planned
from penstock.bench.costs import Costs
from penstock.bench.expectation import PROMPT
from penstock.cluster.share import most_held
from penstock.storage.source import ExpertSource
from penstock.weights.checkpoint import Checkpoint


@dataclass(frozen=True)
class Helped:
    """A step of so many rows, layer by layer: seconds in all, and what of it was experts before and is messages now.
    share: of experts, what the workers compute, so that all end together."""

    rows: int
    alone_seconds: float
    seconds: float
    expert_seconds: float
    message_seconds: float
    share: float

    @property
    def useful(self) -> bool:
        return self.seconds < self.alone_seconds

    def per_second(self, tokens: int) -> float:
        return tokens / self.seconds

    def as_dict(self) -> dict[str, Any]:
        return dict(vars(self))


def expect_helped(
    checkpoint: Checkpoint, one: ClusterExpectation, costs: Costs, workers: Sequence[Planned], link: Link
) -> tuple[Helped, Helped]:
    """Decoding, and a prompt of the usual length.  one: the head alone."""
    (stage,) = one.stages
    each = sum(ExpertSource(checkpoint).slot_bytes)  # bytes of one expert of every layer
    held = sum(most_held(worker.memory, each) for worker in workers) / checkpoint.config.experts
    speed = sum(worker.speed for worker in workers)
    decode = stage.expected.steady
    prompt = stage.expected.prompts[PROMPT]
    chunk = min(PROMPT, stage.plan.chunk)

    def helped(rows: int, seconds: float, waiting: float, steps: float) -> Helped:
        """seconds, waiting: of all steps."""
        config, layers = checkpoint.config, len(costs.layers)
        chosen = config.experts * (1 - (1 - config.experts_used / config.experts) ** rows)
        computing = sum(
            chosen * layer.routed.at(rows * config.experts_used / chosen) for layer in costs.layers
        )
        experts = (computing + waiting / steps) / layers  # of a layer
        # Rows go there once for every worker, and each expert's term comes back.
        row = 4 * config.hidden
        fixed = 2 * link.seconds(HEADER) + len(workers) * rows * row * _by_byte(link)
        by_share = rows * config.experts_used * row * _by_byte(link)
        share = (experts - fixed) / (experts + experts / speed + by_share)
        share = min(1.0, held, max(0.0, share))
        message = fixed + share * by_share
        layer = max((1 - share) * experts, share * experts / speed + message) if share else experts
        after = seconds + steps * layers * (layer - experts)
        return Helped(rows, seconds, after, steps * layers * experts, steps * layers * message, share)

    return (
        helped(1, decode.seconds / decode.tokens, decode.waiting / decode.tokens, 1.0),
        helped(chunk, prompt.seconds, prompt.waiting, PROMPT / chunk),
    )


def _by_byte(link: Link) -> float:
    return link.copying + 1 / link.bytes_per_second
