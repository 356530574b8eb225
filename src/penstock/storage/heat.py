"""How often every expert was used: lately, for whoever watches, and in all, for who remembers."""

import time
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

HALF_LIFE: Final = 30.0  # seconds
FEW_ROWS: Final = 4  # of a step that goes on with answers; with more it reads prompts
OLDEST: Final = 900  # half-lives after which counting begins anew, far from where numbers end


class ExpertMap(NamedTuple):
    """What is in memory and what is in demand."""

    blocks: list[str]
    present: NDArray[np.bool_]  # [blocks, experts]
    heat: NDArray[np.float32]  # [blocks, experts]
    # [blocks, experts]: 0 disk, 1 memory, 2 a device; None: without a device
    tiers: NDArray[np.uint8] | None = None


class Heat:
    """Each use of an expert counts 1 at first and half as much after every half-life.

    Nothing that was counted is touched again: instead of letting old uses shrink, new ones weigh more.  One thread
    counts; others look without waiting for it.

    >>> heat = Heat(["blk.0"], 3, clock=iter([0.0, 0.0, 30.0]).__next__)
    >>> heat.use("blk.0", [1, 2])
    >>> heat.now().tolist()
    [[0.0, 0.5, 0.5]]
    """

    def __init__(self, blocks: Sequence[str], experts: int, clock: Callable[[], float] = time.monotonic):
        self.blocks, self.experts = list(blocks), experts
        self._clock = clock
        self.uses = np.zeros(
            (len(self.blocks), experts), np.int64
        )  # since the beginning: rows that chose an expert
        self.answers = np.zeros_like(self.uses)  # those of them in steps of few rows
        self._rows = dict(zip(self.blocks, zip(self.uses, self.answers, strict=True), strict=True))
        self._begin, self._counts = self._counted = clock(), {block: np.zeros(experts) for block in blocks}

    def use(self, block: str, experts: NDArray[np.int64] | Sequence[int]) -> None:
        """The block runs these experts, of one row or [rows, k]; each counts once, however often it stands there."""
        age = (self._clock() - self._begin) / HALF_LIFE
        if age > OLDEST:
            self._begin_anew(age)
            age = 0.0
        self._counts[block][experts] += 2.0**age
        rows, counts = np.asarray(experts), self._rows[block]
        uses = np.bincount(rows.ravel(), minlength=self.experts)
        for each in counts if rows.ndim < 2 or len(rows) <= FEW_ROWS else counts[:1]:
            each += uses

    def now(self) -> NDArray[np.float32]:
        """[blocks, experts]"""
        begin, counts = self._counted
        fading: float = 2.0 ** ((begin - self._clock()) / HALF_LIFE)
        rows = np.stack([counts[block] for block in self.blocks])
        return (rows * fading).astype(np.float32)

    def _begin_anew(self, age: float) -> None:
        fading = 2.0**-age
        counts = {block: old * fading for block, old in self._counts.items()}
        # One assignment: whoever looks sees counts and the time that they belong to.
        self._begin, self._counts = self._counted = self._begin + age * HALF_LIFE, counts
