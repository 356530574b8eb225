"""How large the pieces are in which several stages read a prompt: learned from how long steps take."""

import math
from dataclasses import dataclass
from typing import Final

from penstock.weights.config import ModelConfig

# Weights of the latest step against those before it of its size.  A step may be slow by chance, not fast.
FASTER: Final = 0.5
SLOWER: Final = 0.1
DISTURBED: Final = 1.1  # times what a row takes in a smaller step: more cannot be the step's own time
KEPT: Final = (
    64  # steps after which those of a size that has not come again are forgotten: all may have changed
)
NEARLY: Final = 1.03  # of the shortest time, what counts as much as that
EACH: Final = 2  # times that a row's share of the experts fits in a step, so that nearly all of them are used


@dataclass
class Seen:
    """Steps of about one size."""

    rows: float
    seconds: float
    latest: int = 0  # number of the latest of them


class PromptPieces:
    """A step over a prompt takes some time for the weights, which all are used whatever its rows are, and some for
    each row.  Small pieces pay more often for the weights; large ones leave all stages but one waiting for longer,
    when the first piece comes and when the last one goes.

    rows: from how many on a step uses nearly all experts
    """

    def __init__(self, rows: int):
        self._least = rows
        self._seen: dict[int, Seen] = {}  # by size, in steps of a factor √2
        self._steps = 0

    @staticmethod
    def of(config: ModelConfig) -> "PromptPieces":
        return PromptPieces(EACH * -(-config.experts // config.experts_used))

    def took(self, rows: int, seconds: float) -> None:
        """A step of so many rows has taken the first stage so long."""
        if rows < self._least:
            return
        self._steps += 1
        self._seen = {size: seen for size, seen in self._seen.items() if self._steps - seen.latest < KEPT}
        smaller = [seen.seconds / seen.rows for seen in self._seen.values() if seen.rows < rows]
        if smaller and seconds / rows > DISTURBED * min(smaller):
            return
        seen = self._seen.setdefault(round(2 * math.log2(rows)), Seen(rows, seconds))
        newer = FASTER if seconds / rows < seen.seconds / seen.rows else SLOWER
        seen.rows += newer * (rows - seen.rows)
        seen.seconds += newer * (seconds - seen.seconds)
        seen.latest = self._steps

    def weights(self) -> float | None:
        """What a step takes for the weights, in rows that take as long: where the line through the times meets zero
        rows.  None: not known, as all steps had one size."""
        seen = list(self._seen.values())
        if len(seen) < 2:
            return None
        rows, seconds = (
            sum(values) / len(seen) for values in zip(*((s.rows, s.seconds) for s in seen), strict=True)
        )
        spread = sum((s.rows - rows) ** 2 for s in seen)
        each = sum((s.rows - rows) * (s.seconds - seconds) for s in seen) / spread
        return max(0.0, seconds / each - rows) if each > 0 else math.inf

    def size(self, tokens: int, stages: int, most: int, turns: int = 1) -> int:
        """Of the next piece of a prompt with so many tokens (none: one), in stages whose layers take so many turns.

        With p pieces it takes (p + (stages − 1) / turns) · (weights + tokens / p), which is least for
        p = √(tokens · (stages − 1) / (weights · turns)).  Around that it hardly changes, and what weights take is not
        known well, so pieces are as large as may be.  As long as it is not known at all, they have two sizes.
        """
        weights = self.weights()
        if weights is None:
            return max(1, min(tokens, most if self._seen else most // 2))
        least = max(
            self._least, min(seen.rows for seen in self._seen.values()) / 2
        )  # nothing is known of smaller ones
        behind = (stages - 1) / turns
        wanted, fewest = math.sqrt(tokens * weights / behind), max(1, -(-tokens // most))
        pieces = max(round(tokens / max(wanted, least)), fewest)

        def takes(count: int) -> float:
            return (count + behind) * (weights + tokens / count)

        best = takes(pieces)
        while pieces > fewest and takes(pieces - 1) < NEARLY * best:
            pieces -= 1
        return max(1, -(-tokens // pieces))
