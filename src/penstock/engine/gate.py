"""How many drafts are worth a place in the next step: from how often such ones were right, and what rows cost.

What rows cost is measured in two parts, because they follow different things.  Computing depends on the width of a
step and, slowly, on the context and on who else uses the machine.  Waiting depends on the experts that the step has
to fetch: more rows choose more experts, and how many of those are missing is a matter of the cache at the time.
"""

from collections import deque
from collections.abc import Sequence
from math import inf
from typing import Final

LATEST: Final = (
    11  # steps of a width that tell what it costs: few, because things change; a median, because of others
)
FIRST: Final = 0.4  # of a row's share of a step, what another row costs before any was seen
STALE: Final = 256  # steps after which a width that was not seen is a matter of guessing again
FORGETS: Final = 0.97  # of what is known of fetches, with every step
RECENT: Final = 64.0  # drafts of a kind that its chance is remembered from
DOUBT: Final = 4.0  # drafts of a kind for which the prior counts
ENOUGH: Final = 32.0  # from which on it does not
PRIOR: Final = 0.5
GAIN: Final = 1.03  # below which it is not worth the risk


class ComputeCosts:
    """Seconds of computing by the rows of a step: the median of the latest steps with as many.  Likewise of making
    drafts, by their number.

    >>> costs = ComputeCosts()
    >>> for rows in (1, 2, 3) * 4: costs.told(rows, 1.0 + 0.5 * rows)
    >>> costs.at(1), costs.at(4)
    (1.5, 3.0)
    """

    def __init__(self) -> None:
        self._latest: dict[int, deque[float]] = {}
        self._medians: dict[int, float] = {}
        self._seen: dict[int, int] = {}  # when each width was seen last, in steps
        self._steps = 0
        self._known: dict[int, float] = {}  # of widths that were seen of late, as of the latest step
        self._found: dict[int, float] = {}  # what was asked for since then

    def told(self, rows: int, seconds: float) -> None:
        self._steps += 1
        self._known.clear()
        self._found.clear()
        latest = self._latest.get(rows)
        if latest is None:  # the first of its kind: code and memory were not at hand yet
            self._latest[rows] = deque(maxlen=LATEST)
            return
        latest.append(seconds)
        # Of an even number the lower one: others make a step longer, and nobody makes it shorter.
        self._medians[rows] = sorted(latest)[(len(latest) - 1) // 2]
        self._seen[rows] = self._steps

    def at(self, rows: int) -> float:
        found = self._found.get(rows)
        if found is None:
            found = self._found[rows] = self._estimate(rows)
        return found

    def _estimate(self, rows: int) -> float:
        """Of widths that were not seen of late: on a line through others.  No row costs less than nothing."""
        known, least = self._known, inf
        if not known:
            fewest = min(self._medians, default=0)
            for width in sorted(self._medians, reverse=True):
                if width == fewest or self._steps - self._seen[width] <= STALE:
                    known[width] = least = min(least, self._medians[width])
        below = max((width for width in known if width <= rows), default=None)
        if below is None:
            return known[min(known)] / (1 + FIRST * (min(known) - rows)) if known else 0.0
        found, first = known[below], min(known)
        if below == rows:
            return found
        above = min((width for width in known if width > rows), default=None)
        if above is not None:
            return found + (rows - below) / (above - below) * (known[above] - found)
        slope = FIRST * found / below if below == first else (found - known[first]) / (below - first)
        return found + slope * (rows - below)


class FetchCosts:
    """Bytes of experts that a step has to fetch by its rows, in the cache as it is of late, and how long a byte keeps
    a step waiting.  Before steps of different widths were seen, a row is expected to fetch as much as the first."""

    def __init__(self) -> None:
        self._weight = self._rows = self._bytes = self._rows2 = self._product = self._seconds = 0.0

    def told(self, rows: int, fetched: float, waited: float) -> None:
        if not fetched and not self._bytes:
            return
        sums = (self._weight, self._rows, self._bytes, self._rows2, self._product, self._seconds)
        new = (1.0, rows, fetched, rows * rows, rows * fetched, waited)
        self._weight, self._rows, self._bytes, self._rows2, self._product, self._seconds = (
            FORGETS * old + each for old, each in zip(sums, new, strict=True)
        )

    def bytes_at(self, rows: int) -> float:
        if not self._bytes:
            return 0.0
        mean, fetched = self._rows / self._weight, self._bytes / self._weight
        spread = self._rows2 / self._weight - mean * mean
        slope = fetched / mean
        if spread > 0.05:
            slope = max(0.0, (self._product / self._weight - mean * fetched) / spread)
        return max(0.0, fetched + slope * (rows - mean))

    def at(self, rows: int) -> float:
        """Seconds of waiting."""
        return self.bytes_at(rows) * self._seconds / self._bytes if self._bytes else 0.0


class StepCosts:
    """Seconds of a step by its rows."""

    def __init__(self) -> None:
        self.compute, self.fetch = ComputeCosts(), FetchCosts()

    def told(self, rows: int, seconds: float, fetched: float = 0.0, waited: float = 0.0) -> None:
        self.compute.told(rows, max(seconds - waited, 1e-9))
        self.fetch.told(rows, fetched, waited)

    def at(self, rows: int) -> float:
        return self.compute.at(rows) + self.fetch.at(rows)


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

    def begin_anew(self, drafter: str, right: int) -> None:
        """Another text: of a drafter's places nothing is known but that so many first drafts were right.  How often
        it is right when it is so sure still holds."""
        for name, place, sure in [*self._tried]:
            if name == drafter and sure < 0:
                del self._right[name, place, sure], self._tried[name, place, sure]
        self._right[drafter, 0, -1] = self._tried[drafter, 0, -1] = float(right)

    def of(self, drafter: str, place: int, sure: int = -1) -> float:
        """sure: -1 where it is not known yet.  Of a place that was hardly tried it is expected that drafts there are
        as often right as in the place before: else nobody would ever find out."""
        key = (drafter, place, sure)
        right, tried = self._right.get(key, 0.0), self._tried.get(key, 0.0)
        if tried >= ENOUGH:
            return right / tried
        before = self.of(drafter, place - 1) if place and sure < 0 else PRIOR
        prior = self.of(drafter, place) if sure >= 0 else before
        return (right + DOUBT * prior) / (tried + DOUBT)


def best_depth(
    chances: Sequence[float], rows: int, costs: StepCosts, drafting: ComputeCosts | None = None
) -> tuple[int, float]:
    """How many drafts to add to a step of so many rows, and how many times as fast it then is.

    chances: of each draft, if those before it are right; drafting: what making so many drafts takes
    """
    each = costs.at(rows) / rows  # what a token takes without any
    depth, gain, all_right, expected = 0, 1.0, 1.0, float(rows)
    for count, chance in enumerate(chances, 1):
        all_right *= chance
        expected += all_right
        seconds = costs.at(rows + count)
        if drafting is not None:
            seconds += drafting.at(count)
        if seconds and expected * each / seconds > max(gain, GAIN):
            depth, gain = count, expected * each / seconds
    return depth, gain
