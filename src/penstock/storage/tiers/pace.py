"""What a token takes besides what is waited for: measured while a model answers, and noted for the next plan."""

import hashlib
import math
import time
from collections import deque
from statistics import median
from typing import Any, Final, NamedTuple

from penstock.machine.notes import recall, remember
from penstock.storage.plan import Plan
from penstock.storage.tiers.counters import TierCounters
from penstock.storage.tiers.division import Times

NOTES: Final = "tiers"
ENOUGH: Final = 16  # tokens, before anything is believed
KEPT: Final = 256  # tokens, the latest ones


class Pace(NamedTuple):
    """device: seconds of a token that the device computes; turn: seconds of a layer in which it waits for more than
    experts should take that are copied, or computed by the host"""

    device: float
    turn: float


class Pacer:
    """Watches tokens that come one by one."""

    def __init__(self, counters: TierCounters, layers: int):
        self._counters, self._layers = counters, layers
        self._begin: tuple[float, ...] | None = None
        self._turns = 0
        self._paces: deque[Pace] = deque(maxlen=KEPT)

    def turn(self, block: int, rows: int) -> None:
        """A layer begins."""
        if block == 0:
            now, begin = self._now(), self._begin
            if begin is not None and self._turns == self._layers:
                self._add(*(late - early for late, early in zip(now, begin, strict=True)))
            self._begin, self._turns = now, 0
        if rows == 1:
            self._turns += 1
        else:
            self._begin = None

    def _now(self) -> tuple[float, ...]:
        c = self._counters
        return time.perf_counter(), c.host_stall_seconds + c.link_stall_seconds, c.expected_seconds

    def _add(self, seconds: float, waiting: float, expected: float) -> None:
        self._paces.append(Pace(max(0.0, seconds - waiting), max(0.0, waiting - expected) / self._layers))

    @property
    def pace(self) -> Pace | None:
        """In the middle of what was seen, once that is enough."""
        if len(self._paces) < ENOUGH:
            return None
        return Pace(median(each.device for each in self._paces), median(each.turn for each in self._paces))


def note(plan: Plan, device: str, pace: Pace, times: Times) -> None:
    """device: its description"""
    remember(
        NOTES,
        _key(plan, device),
        {"pace": list(pace), "times": [times.link, times.disk, times.call, *times.host]},
    )


def noted(plan: Plan, device: str) -> tuple[Pace, Times] | None:
    """What an earlier run of such a model on this device has found."""
    match recall(NOTES).get(_key(plan, device)):
        case {"pace": list(pace), "times": list(times)} if _sound(pace, 2) and _sound(times, 6):
            link, disk, call, *host = times
            return Pace(*pace), Times(link, tuple(host), disk, call)
    return None


def _sound(numbers: list[Any], count: int) -> bool:
    return len(numbers) == count and all(
        isinstance(number, float | int) and math.isfinite(number) and number >= 0 for number in numbers
    )


def _key(plan: Plan, device: str) -> str:
    """What times depend on: the device, and the weights of a token by kind."""
    assert plan.tiers is not None
    kinds = [(kind.slot_bytes, len(kind.blocks)) for kind in plan.tiers.kinds]
    return hashlib.sha256(repr((device, kinds, sorted(plan.read_by_token.items()))).encode()).hexdigest()[:16]
