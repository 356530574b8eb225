"""How many experts an expert worker holds, and how many of them it is left to compute: as many as let both sides end
at the same time."""

from typing import Final

FEW: Final = 16  # rows up to which a step counts as decoding: messages weigh more there
BEGIN: Final = 0.5  # of what a worker holds, before anything is known
GAIN: Final = 0.2  # of what it holds, for a wait as long as the layer's work
LEAST: Final = 1  # expert: as long as a few tokens choose it, what is learned stays true


RESERVED: Final = 1 << 29  # bytes of a worker's memory that are not for experts


def most_held(memory: int, each: int) -> int:
    """Experts of every layer that a worker has room for; each: bytes of one of every layer."""
    return max(0, memory - RESERVED) // each


class Share:
    """Of `held` experts.  Steps of few rows and of many are learned apart."""

    def __init__(self, held: int):
        self._held = held
        self._wanted = dict.fromkeys((True, False), BEGIN * held)

    def count(self, rows: int) -> int:
        """Experts that it is to compute in a step of so many rows."""
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
