"""`memory="auto"`: the experts' share follows what the machine can spare."""

import time
from typing import Final

from penstock.machine.memory import read_memory
from penstock.machine.pressure import Paging, group_pressure, machine_pressure, read_paging
from penstock.storage.governor import Governor, Sample
from penstock.storage.streamed import StreamedExperts

EVERY: Final = 1.0  # seconds between two samples


class Watch:
    """Looks at the machine now and then, between steps, and gives experts more or less memory."""

    def __init__(self, experts: StreamedExperts, lowest: int, highest: int):
        size = experts.cache.capacity
        self.experts = experts
        self.governor = Governor(size, min(lowest, size), max(highest, size), read_memory().margin)
        self._paging: Paging = read_paging()
        self._sampled = time.monotonic()
        self.resizes = 0

    def adjust(self) -> None:
        """Called before every step; most of the time there is nothing to do."""
        now = time.monotonic()
        passed = now - self._sampled
        if passed < EVERY:
            return
        paging, pressure = read_paging(), group_pressure() or machine_pressure()
        sample = Sample(
            available=read_memory().room,
            stalled=pressure.some.avg10 if pressure is not None else 0.0,
            major_faults=_rate(paging.own_major_faults, self._paging.own_major_faults, passed),
            swap_ins=_rate(paging.swap_ins, self._paging.swap_ins, passed),
            size=self.experts.cache.used,
        )
        self._paging, self._sampled = paging, now
        before = self.governor.size
        size = self.governor.advise(sample, now)
        if size != before:
            self.experts.resize(size)
            self.resizes += 1


def _rate(now: int | None, before: int | None, passed: float) -> float:
    return 0.0 if now is None or before is None else (now - before) / passed
