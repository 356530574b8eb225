"""The link between the host's memory and the card's: memory that copies start from, and how fast they are."""

import mmap
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Final

import torch

from penstock.backend.base import Bytes, ExpertSlots, HostExpert
from penstock.backend.cuda.device import driver
from penstock.backend.device import HOST_ROWS, ExpertSeconds, HostBackend

TOGETHER: Final = 4  # experts that the processors compute in a call, when it is measured what each takes
_READ_ONLY, _PORTABLE = 8, 1  # CU_MEMHOSTREGISTER_…


def pin(memory: Bytes) -> bool:
    torch.zeros(1, device="cuda")  # makes the card this thread's own
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


def measure_experts(slots: ExpertSlots, experts: Sequence[HostExpert], host: HostBackend) -> ExpertSeconds:
    """The processors while copies are under way, as in a step: both read the same memory."""
    given = list(zip(range(slots.count), experts, strict=False))

    def bring() -> None:
        for slot, expert in given:
            slots.bring(slot, expert)

    def seconds(work: Callable[[], None]) -> float:
        begin = time.perf_counter()
        work()
        return time.perf_counter() - begin

    bring()
    slots.wait()
    asked = seconds(bring)
    link = asked + seconds(slots.wait)

    def computed(rows: int, together: int) -> float:
        """Of a call with so many experts."""
        works = host.expert_work(experts, rows, together)
        works[0]()  # makes threads and memory
        bring()
        found = median(map(seconds, works))
        slots.wait()
        return found

    together = min(TOGETHER, len(experts))
    alone, some = computed(1, 1), computed(1, together)
    call = max(0.0, (together * alone - some) / (together - 1)) if together > 1 else 0.0
    others = [computed(rows, together) for rows in HOST_ROWS[1:]]
    each = tuple(max(1e-9, total - call) / together for total in (some, *others))
    return ExpertSeconds(link / len(given), each, asked / len(given), call)
