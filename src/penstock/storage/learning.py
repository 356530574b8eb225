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
        uses = heat.uses[: len(layers)]  # the draft block is last, and may be there or not
        self.finish = weakref.finalize(self, _learn, fingerprint, uses, counters)


def _learn(fingerprint: str, uses: NDArray[np.int64], counters: Counters | None) -> None:
    guesses, right = (counters.guesses, counters.guesses_right) if counters is not None else (0, 0)
    learn_usage(fingerprint, Usage(uses.astype(np.float32), guesses, right))
