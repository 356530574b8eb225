"""Numbers about this machine that are measured once and then remembered, unless the machine was busy meanwhile."""

import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any, Final

from penstock.machine.kernel_files import PROC, text
from penstock.machine.notes import notes_path, recall, remember

BUSY: Final = 0.1  # of the processor's time, used by others: what was measured then is measured again
TRIALS: Final = 4  # then it is believed all the same
_HERE: Final[dict[tuple[Path, str, bool], list[float]]] = {}  # what this very process has measured
NOTICE: Final = "measuring how fast this machine is, once; this takes from seconds to a minute …"


class MeasuredOnce:
    """Notes of one `name`, about one `machine`.  `again`: measured now, whatever is noted.

    What was measured on a busy machine is kept, but not believed at once: the next measurement adds to it, and of
    both the faster is right.  `say` is told when the first measurement begins.
    """

    def __init__(self, name: str, machine: str, again: bool, say: Callable[[str], None]):
        self._name, self._machine, self._again, self._say = name, machine, again, say
        self._told = False

    def numbers(
        self,
        item: str,
        count: int,
        measure: Callable[[], list[float]],
        *,
        rounds: int = 1,
        holds: Callable[[list[float]], bool] = lambda _: True,
    ) -> list[float]:
        """`count` numbers, all of which are better if they are smaller.

        rounds: how often they are measured, where no single time is to be trusted; the one in the middle counts
        holds: whether what is noted is still so, where that can change
        """
        key = f"{self._machine} {item}"
        here = (notes_path(self._name), key, self._again)
        if here in _HERE:
            return _HERE[here]
        known, busy_trials = _noted(recall(self._name).get(key), count)
        if known and not self._again and not 0 < busy_trials < TRIALS:
            if holds(known):
                _HERE[here] = known
                return known
            known = []
        if not self._told:
            self._say(NOTICE)
            self._told = True
        others = _Others()
        found = [median(each) for each in zip(*(measure() for _ in range(rounds)), strict=True)]
        if known and busy_trials:
            found = [min(pair) for pair in zip(found, known, strict=True)]
        trials = busy_trials + 1 if others.share() > BUSY else 0
        remember(self._name, key, {"numbers": found, "busy_trials": trials})
        _HERE[here] = found
        return found


def _noted(value: Any, count: int) -> tuple[list[float], int]:
    """What stands there, if it can be believed to be ours: the numbers, and how often a busy machine gave them."""
    match value:
        case {"numbers": list(numbers), "busy_trials": int(trials)} if len(numbers) == count:
            if all(isinstance(number, float) and math.isfinite(number) and number >= 0 for number in numbers):
                return numbers, trials
    return [], 0


class _Others:
    """How much of the processor others use meanwhile."""

    def __init__(self) -> None:
        self._begin = time.perf_counter(), _busy_seconds(), _own_seconds()

    def share(self) -> float:
        begin, busy, own = self._begin
        others = (_busy_seconds() - busy) - (_own_seconds() - own)
        return others / max(1e-3, (time.perf_counter() - begin) * (os.cpu_count() or 1))


def _own_seconds() -> float:
    times = os.times()
    return times.user + times.system


def _busy_seconds() -> float:
    """That all processors together were at work, also for other guests of the same host; 0 where nobody says."""
    first = (text(PROC / "stat") or "").partition("\n")[0].split()
    if len(first) < 9 or first[0] != "cpu":
        return 0.0
    user, nice, system, _, _, irq, softirq, steal = map(int, first[1:9])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")
