"""How long steps take."""

import time
from typing import NamedTuple

from penstock.engine.stepping import Stepper


class Spent(NamedTuple):
    """What a step took.  fetched, waited: bytes of experts that had to come, and seconds of waiting for them."""

    seconds: float
    fetched: float = 0.0
    waited: float = 0.0


class StepWatch:
    """How long a step takes, from now on, and what it waits for."""

    __slots__ = ("_begin", "_stepper", "_waits")

    def __init__(self, stepper: Stepper):
        self._stepper, self._waits, self._begin = stepper, stepper.waits, time.perf_counter()

    def spent(self, since: float = 0.0) -> Spent:
        """Of a step that is over.  since: when the step before it was, if that was later than this one's beginning"""
        seconds, (fetched, waited) = time.perf_counter() - max(self._begin, since), self._stepper.waits
        seconds -= self._stepper.draft_seconds  # which are the drafter's
        if fetched <= self._waits[0]:  # also if the weights were loaded anew
            return Spent(seconds)
        return Spent(seconds, fetched - self._waits[0], waited - self._waits[1])
