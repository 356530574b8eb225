"""How many drafts are worth a place in the next step: from how often such ones were right, and what rows cost."""

from collections.abc import Sequence
from typing import Final

FORGETS: Final = 0.97  # of what is known of costs, with every step
WIDE: Final = 0.05  # spread of rows from which a slope can be told
OUTLIER: Final = 3.0  # times what was expected: somebody else had the processor
RECENT: Final = 64.0  # drafts of a kind that its chance is remembered from
DOUBT: Final = 4.0  # drafts of a kind for which the prior counts
PRIOR: Final = 0.5
GAIN: Final = 1.02  # below which it is not worth the risk


class RowCosts:
    """Seconds of a step by its rows: a straight line through those of late, whatever they wait for.

    >>> costs = RowCosts()
    >>> for rows in (1, 2, 3) * 20: costs.told(rows, 1.0 + 0.5 * rows)
    >>> round(costs.at(1), 6), round(costs.at(4), 6)
    (1.5, 3.0)
    """

    def __init__(self) -> None:
        self._weight = self._rows = self._seconds = self._rows2 = self._product = 0.0

    def told(self, rows: int, seconds: float) -> None:
        if self._weight > 8 and self.known:
            seconds = min(seconds, OUTLIER * self.at(rows))
        sums = (self._weight, self._rows, self._seconds, self._rows2, self._product)
        new = (1.0, rows, seconds, rows * rows, rows * seconds)
        self._weight, self._rows, self._seconds, self._rows2, self._product = (
            FORGETS * old + each for old, each in zip(sums, new, strict=True)
        )

    @property
    def known(self) -> bool:
        """Whether steps of different widths were seen."""
        return self._weight > 0 and self._spread() > WIDE

    def _spread(self) -> float:
        mean = self._rows / self._weight
        return self._rows2 / self._weight - mean * mean

    def at(self, rows: int) -> float:
        """Only what has been seen is told apart: a row more never costs less."""
        if not self._weight:
            return 0.0
        mean, seconds = self._rows / self._weight, self._seconds / self._weight
        slope = 0.0
        if self.known:
            slope = max(0.0, (self._product / self._weight - mean * seconds) / self._spread())
        return max(seconds + slope * (rows - mean), 0.05 * seconds)


class Chances:
    """How often drafts were right, if those before them were: by drafter, place and how sure it was."""

    def __init__(self) -> None:
        self._right: dict[tuple[str, int, int], float] = {}
        self._tried: dict[tuple[str, int, int], float] = {}

    def told(self, drafter: str, place: int, sure: int, right: bool) -> None:
        for key in ((drafter, place, sure), (drafter, place, -1)):
            keep = 1 - 1 / RECENT
            self._right[key] = self._right.get(key, 0.0) * keep + right
            self._tried[key] = self._tried.get(key, 0.0) * keep + 1

    def of(self, drafter: str, place: int, sure: int = -1) -> float:
        """sure: -1 where it is not known yet"""
        key = (drafter, place, sure)
        right, tried = self._right.get(key, 0.0), self._tried.get(key, 0.0)
        prior = PRIOR if sure < 0 else self.of(drafter, place)
        return (right + DOUBT * prior) / (tried + DOUBT)


def best_depth(
    chances: Sequence[float], rows: int, costs: RowCosts, seconds_per_draft: float = 0.0
) -> tuple[int, float]:
    """How many drafts to add to a step of so many rows, and how many times as fast it then is.

    chances: of each draft, if those before it are right.
    """
    plain = rows / costs.at(rows) if costs.at(rows) else 0.0
    depth, gain, all_right, expected = 0, 1.0, 1.0, float(rows)
    for count, chance in enumerate(chances, 1):
        all_right *= chance
        expected += all_right
        seconds = costs.at(rows + count) + count * seconds_per_draft
        if plain and seconds and expected / seconds / plain > max(gain, GAIN):
            depth, gain = count, expected / seconds / plain
    return depth, gain
