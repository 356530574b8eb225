"""How fast a model will be, before anything is loaded: prompts and answers of runs that are played through."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from statistics import fmean
from typing import Final

import numpy as np

from penstock.bench.costs import Costs
from penstock.bench.expected_run import SETTLED, UNTRIED, ExpectedRun, Phase
from penstock.bench.missing_weights import Handling
from penstock.bench.routing import DrawnRouting, Routing, TracedRouting
from penstock.storage.plan import Plan, Sizes
from penstock.storage.read_speed import ReadSpeed
from penstock.storage.source import ExpertSource
from penstock.storage.trace import Trace
from penstock.storage.usage import Usage
from penstock.weights.checkpoint import Checkpoint

PROMPT: Final = 512  # tokens
OTHER_PROMPTS: Final = (16, 64, 4096)
ANSWER: Final = 64
DRAWS: Final = 4096  # of experts that an answer is played with, so that chance does not show


@dataclass(frozen=True)
class Expectation:
    """A prompt and an answer from where a run begins, and answers once the cache is full."""

    prefill: Phase
    first: Phase
    steady: Phase
    prompts: Mapping[int, Phase]  # by length
    answers: Mapping[int, Phase]  # by length of the prompt: a short one leaves a cache that is not full


def expect(
    checkpoint: Checkpoint,
    plan: Plan,
    costs: Costs,
    disk: ReadSpeed,
    *,
    usage: Usage | None = None,
    trace: Trace | None = None,
    policy: str = "lfru",
    handling: Handling = Handling(),
    fresh: float = 0.0,
    young: float = 0.0,
    remembered: float = inf,
) -> Expectation:
    """The speed of a model or of some of its layers (`Checkpoint.slice`), on disk or imagined.

    usage, trace  how often experts were used, or which ones; without either all are equally likely
    handling      what missing experts cost of the processors' time
    fresh         seconds that a byte takes to become memory, for experts and for the rows of the first chunk
    young         seconds longer that a byte takes to be read for the second time to memory that was new
    remembered    bytes of experts that are not cold to a disk once they have been read
    """
    sizes = Sizes(checkpoint)
    source, used = sizes.source, checkpoint.config.experts_used
    forgotten = max(0.0, 1 - remembered / plan.experts_total)

    known = usage if trace is None else None
    right = UNTRIED if usage is None or usage.guesses_right is None else usage.guesses_right

    def run(seed: int = 0) -> ExpectedRun:
        if trace is not None:
            routing: Routing = TracedRouting(trace)
        else:
            even = np.ones((len(checkpoint.layers), source.experts))
            prompts, answers = (even, even) if usage is None else (usage.weights(), usage.answer_weights())
            routing = DrawnRouting(prompts, used, seed, answers)
        return ExpectedRun(
            checkpoint, plan, costs, disk, routing, policy, handling, right, fresh, young, sizes, forgotten
        )

    def beginning(tokens: int, seed: int = 0) -> tuple[ExpectedRun, Phase]:
        """A run that has read a prompt."""
        begun = run(seed)
        if known is not None:
            begun.fill(known.favourites())
        return begun, begun.prefill(tokens)

    times = 1 if trace is not None else -(-DRAWS // (ANSWER * used * len(checkpoint.layers)))
    begun = [beginning(PROMPT, seed) for seed in range(times)]
    prefill, first = _mean([phase for _, phase in begun]), _mean([each.decode(ANSWER) for each, _ in begun])
    prompts, answers = {PROMPT: prefill}, {PROMPT: first}
    for tokens in OTHER_PROMPTS:
        other, prompts[tokens] = beginning(tokens)
        answers[tokens] = other.decode(ANSWER)
    settled = run()
    settled.fill(known.favourites() if known is not None else _mixed(source), SETTLED)
    settled.settle(PROMPT)
    return Expectation(prefill, first, settled.decode(times * ANSWER), prompts, answers)


def _mean(phases: Sequence[Phase]) -> Phase:
    """Of as many tokens each."""
    seconds, waiting, disk_bytes, hit_rate = (
        fmean(numbers)
        for numbers in zip(*((p.seconds, p.waiting, p.disk_bytes, p.hit_rate) for p in phases), strict=True)
    )
    return Phase(phases[0].tokens, seconds, waiting, disk_bytes, hit_rate)


def _mixed(source: ExpertSource) -> list[int]:
    """All experts, such that any part of the list has about as many of each block."""
    blocks = range(len(source.checkpoint.layers))
    return [block * source.experts + expert for expert in range(source.experts) for block in blocks]
