"""What a run adds to what is known of a model's use, when it ends: closed, forgotten or interrupted."""

import weakref

import numpy as np
from numpy.typing import NDArray

from penstock.storage.counters import Counters
from penstock.storage.heat import Heat
from penstock.storage.usage import Usage, learn_usage, recall_usage


class Learning:
    """Of the model with this fingerprint; `known` is what was known when the run began."""

    def __init__(self, fingerprint: str, heat: Heat, counters: Counters | None = None):
        layers = [number for number, block in enumerate(heat.blocks) if block.startswith("blk.")]
        self.known: Usage | None = recall_usage(fingerprint, len(layers), heat.experts)
        # The draft block is last, and may be there or not.
        uses, answers = heat.uses[: len(layers)], heat.answers[: len(layers)]
        self.finish = weakref.finalize(self, _learn, fingerprint, self.known, uses, answers, counters)


def _learn(
    fingerprint: str,
    known: Usage | None,
    uses: NDArray[np.int64],
    answers: NDArray[np.int64],
    counters: Counters | None,
) -> None:
    """What was known is tried on the answers; where nothing was, their prompts are."""
    guesses, right = (counters.guesses, counters.guesses_right) if counters is not None else (0, 0)
    seen = Usage(uses.astype(np.float32), guesses, right)
    before = known.counts if known is not None and known.tells else (uses - answers).astype(np.float32)
    learn_usage(fingerprint, seen.tried(before, answers) if before.any() else seen)
