"""Which experts tokens will ask for: drawn by how often each was used so far, or as a trace has recorded them."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from penstock.storage.heat import FEW_ROWS
from penstock.storage.trace import Trace


class Routing(Protocol):
    """Experts by block number."""

    def draw(self, block: int, rows: int) -> list[int]:
        """Those that so many rows choose, ascending."""
        ...


class DrawnRouting:
    """Every token by itself; `weights` [blocks, experts] say how often an expert is chosen, relative to others, and
    `answers` the same for steps of few rows, where it is not so."""

    def __init__(
        self,
        weights: NDArray[np.float64],
        used: int,
        seed: int = 0,
        answers: NDArray[np.float64] | None = None,
    ):
        self._prompts, self._answers = (
            each / each.sum(axis=1, keepdims=True)
            for each in (weights, weights if answers is None else answers)
        )
        self._used, self._rng = used, np.random.default_rng(seed)

    @staticmethod
    def uniform(blocks: int, experts: int, used: int) -> "DrawnRouting":
        return DrawnRouting(np.ones((blocks, experts)), used)

    def draw(self, block: int, rows: int) -> list[int]:
        weights = (self._answers if rows <= FEW_ROWS else self._prompts)[block]
        # Without putting back: a race of exponential clocks, of which the first so many win.
        if rows <= 8 or self._used == len(weights):
            arrivals = self._rng.standard_exponential((rows, len(weights))) / weights
            chosen = np.argpartition(arrivals, self._used - 1, axis=1)[:, : self._used]
            return sorted(set(chosen.reshape(-1).tolist()))
        chances = np.minimum(1.0, self._used * weights)
        found = np.flatnonzero(self._rng.random(len(weights)) < 1 - (1 - chances) ** rows)
        return [int(number) for number in found] or [int(weights.argmax())]


class TracedRouting:
    """The tokens of a trace, again and again from its beginning."""

    def __init__(self, trace: Trace):
        experts = trace.header.experts
        self._requests: list[list[list[int]]] = [[] for _ in trace.header.expert_bytes]
        for block, keys in zip(trace.blocks.tolist(), trace.requests(), strict=True):
            self._requests[block].append([key % experts for key in keys])
        self._next = [0] * len(self._requests)

    def draw(self, block: int, rows: int) -> list[int]:
        requests: Sequence[list[int]] = self._requests[block]
        chosen: set[int] = set()
        for _ in range(rows if requests else 0):
            chosen.update(requests[self._next[block] % len(requests)])
            self._next[block] += 1
        return sorted(chosen) or [0]
