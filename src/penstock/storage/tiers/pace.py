"""What a token takes besides what is waited for, and where its experts are found: measured while a model answers, and
noted for the next plan."""

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
    experts should take that are copied, or computed by the host; below zero where it waits for less"""

    device: float
    turn: float


class Routing(NamedTuple):
    """Who is asked for, as far as places are concerned.

    device   slots for a share s of the experts have s ** device of the uses: 1 if all are equally likely, less the
             more some are preferred
    memory   the same of the other experts, and of memory that holds a share of them
    guessed  of the uses that slots do not have, the share that is brought before it is asked for
    """

    device: float
    memory: float
    guessed: float


USUAL: Final = Routing(0.85, 1.0, 0.2)  # of random weights (`benchmarks/tiers.py`)


def power(share: float, uses: float) -> float:
    """Of which a share of the experts is that of the uses."""
    return math.log(min(0.999, max(0.001, uses))) / math.log(share) if 0.0 < share < 1.0 else 1.0


class Pacer:
    """Watches tokens that come one by one."""

    def __init__(self, counters: TierCounters, layers: int):
        self._counters, self._layers = counters, layers
        self._begin: tuple[float, ...] | None = None
        self._turns = 0
        self._paces: deque[Pace] = deque(maxlen=KEPT)
        self._uses: deque[tuple[float, ...]] = deque(maxlen=KEPT)  # asked for, found, guessed, in memory

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
        waited = c.host_stall_seconds + c.link_stall_seconds
        uses = (c.device_hits + c.device_misses, c.device_hits, c.ahead_right, c.memory_hits)
        return time.perf_counter(), waited, c.expected_seconds, *uses

    def _add(self, seconds: float, waiting: float, expected: float, *uses: float) -> None:
        self._paces.append(Pace(max(0.0, seconds - waiting), (waiting - expected) / self._layers))
        self._uses.append(uses)

    @property
    def pace(self) -> Pace | None:
        """In the middle of what was seen, once that is enough."""
        if len(self._paces) < ENOUGH:
            return None
        return Pace(median(each.device for each in self._paces), median(each.turn for each in self._paces))

    def routing(self, device: float, memory: float) -> Routing | None:
        """If the device had this share of the experts, and memory that of the others, once enough was seen."""
        if len(self._uses) < ENOUGH:
            return None
        asked, found, guessed, in_memory = (sum(each) for each in zip(*self._uses, strict=True))
        others, missing = max(1, asked - found + guessed), max(1, asked - found)
        return Routing(
            power(device, 1 - others / max(1, asked)), power(memory, in_memory / missing), guessed / others
        )


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
        case {"pace": [device_seconds, turn], "times": [link, disk, call, *host]} if _sound(
            [device_seconds, link, disk, call, *host], 7
        ) and _sound([turn], 1, -1.0):
            return Pace(device_seconds, turn), Times(link, tuple(host), disk, call)
    return None


def note_routing(model: str, routing: Routing) -> None:
    """model: its fingerprint"""
    remember(NOTES, model, {"routing": list(routing)})


def noted_routing(model: str) -> Routing | None:
    """What an earlier run of this very model has found, on whatever device."""
    match recall(NOTES).get(model):
        case {"routing": list(routing)} if _sound(routing, 3) and routing[2] <= 1:
            return Routing(*routing)
    return None


def _sound(numbers: list[Any], count: int, least: float = 0.0) -> bool:
    return len(numbers) == count and all(
        isinstance(number, float | int) and math.isfinite(number) and number >= least for number in numbers
    )


def _key(plan: Plan, device: str) -> str:
    """What times depend on: the device, and the weights of a token by kind."""
    assert plan.tiers is not None
    kinds = [(kind.slot_bytes, len(kind.blocks)) for kind in plan.tiers.kinds]
    return hashlib.sha256(repr((device, kinds, sorted(plan.read_by_token.items()))).encode()).hexdigest()[:16]
