"""How many experts an expert worker holds, and how many of them it is left to compute: as many as let both sides end
at the same time, or none where that is slower than without it."""

import math
from typing import Final

FEW: Final = 16  # rows up to which a step counts as decoding: messages weigh more there
BEGIN: Final = 0.5  # of what a worker holds, before anything is known
GAIN: Final = 0.2  # of what it holds, for a wait as long as the layer's work
LEAST: Final = 1  # expert: as long as a few tokens choose it, what is learned stays true
OFTEN, RARELY = 3, 255  # layers between two trials: odd, so that each layer has its turn
NEWER: Final = 0.25  # weight of the latest time, or trial, against those before it
RESERVED: Final = 1 << 29  # bytes of a worker's memory that are not for experts


def most_held(memory: int, each: int) -> int:
    """Experts of every layer that a worker has room for; each: bytes of one of every layer."""
    return max(0, memory - RESERVED) // each


class Verdict:
    """Whether a worker pays.  A machine that it shares with the head may be slower with both than with one, though
    neither waits for the other; so now and then a layer is run the other way round."""

    def __init__(self) -> None:
        self.pays = True
        self._gain = 0.0  # log of seconds without it / seconds with it
        self._trials = 0
        self._every = self._left = OFTEN

    def is_due(self) -> bool:
        """Whether the next layer is a trial; asked once for each."""
        self._left -= 1
        if self._left >= 0:
            return False
        self._left = self._every
        return True

    def tried(self, usual: float, other: float) -> bool:
        """A layer as usual has taken so many seconds, and one the other way round.  Whether that changes the
        verdict."""
        gain = math.log(other / usual) if self.pays else math.log(usual / other)
        self._trials += 1
        self._gain += max(NEWER, 1 / self._trials) * (gain - self._gain)
        changes = (self._gain > 0) != self.pays
        self.pays ^= changes
        self._every = OFTEN if changes else min(RARELY, 2 * self._every + 1)
        return changes


class Share:
    """Of `held` experts.  Steps of few rows and of many are learned apart."""

    def __init__(self, held: int):
        self._held = held
        self._wanted = dict.fromkeys((True, False), BEGIN * held)
        self._verdicts = {True: Verdict(), False: Verdict()}

    def verdict(self, rows: int) -> Verdict:
        """Whether it pays in steps of so many rows."""
        return self._verdicts[rows <= FEW]

    def count(self, rows: int, trial: bool = False) -> int:
        """Experts that it is to compute in a step of so many rows.  trial: the other way round than usual"""
        if self.verdict(rows).pays == trial:
            return 0
        return max(min(LEAST, self._held), round(self._wanted[rows <= FEW]))

    def learn(self, rows: int, work: float, waited: float, spare: float) -> None:
        """After a layer: the head worked for so many seconds on its own experts, and then waited for the worker's, or
        they had been there for some time to spare."""
        whole = work + waited
        if whole > 0:
            change = GAIN * self._held * (spare - waited) / whole
            few = rows <= FEW
            self._wanted[few] = min(float(self._held), max(0.0, self._wanted[few] + change))

    @property
    def now(self) -> tuple[int, int]:
        """In steps of few rows, and of many."""
        return self.count(1), self.count(FEW + 1)
