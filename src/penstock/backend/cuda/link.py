"""The link between the host's memory and the card's: memory that copies start from, and how fast they are."""

import mmap
import time
from collections.abc import Sequence
from statistics import median
from typing import Final

from penstock.backend.base import HOST_ROWS, Bytes, ExpertSeconds, ExpertSlots
from penstock.backend.cpu.deepseek_v4.host_share import expert_work
from penstock.backend.cpu.weights import CpuExpert
from penstock.backend.cuda.device import driver

TOGETHER: Final = 4  # experts that the host computes at a time while it is measured
_READ_ONLY, _PORTABLE = 8, 1  # CU_MEMHOSTREGISTER_…


def pin(memory: Bytes) -> bool:
    start, nbytes = _pages(memory)
    for flags in (_PORTABLE | _READ_ONLY, _PORTABLE):
        (error,) = driver().cuMemHostRegister(start, nbytes, flags)
        if int(error) == 0:
            return True
    return False


def unpin(memory: Bytes) -> None:
    driver().cuMemHostUnregister(_pages(memory)[0])


def _pages(memory: Bytes) -> tuple[int, int]:
    first, size = memory.ctypes.data, mmap.PAGESIZE
    start = first // size * size
    return start, -(-(first + memory.size - start) // size) * size


def measure_experts(slots: ExpertSlots, experts: Sequence[CpuExpert], threads: int) -> ExpertSeconds:
    """The processors while copies are under way, as in a step: both read the same memory."""
    given = list(zip(range(slots.count), experts, strict=False))

    def bring() -> None:
        for slot, expert in given:
            slots.bring(slot, expert)

    bring()
    slots.wait()
    begin = time.perf_counter()
    bring()
    slots.wait()
    link = (time.perf_counter() - begin) / len(given)
    host = []
    for rows in HOST_ROWS:
        together = min(TOGETHER, len(experts))
        works = expert_work(experts, rows, together, threads)
        works[0].run()  # makes threads and memory
        bring()
        times = []
        for work in works:
            begin = time.perf_counter()
            work.run()
            times.append((time.perf_counter() - begin) / together)
        slots.wait()
        host.append(median(times))
    return ExpertSeconds(link, tuple(host))
