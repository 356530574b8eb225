"""The link between the host's memory and the card's: memory that copies start from, and how fast they are."""

import mmap
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Final

import numpy as np
import torch

from penstock.backend.base import Bytes, HostExpert
from penstock.backend.cuda.device import card, check, driver
from penstock.backend.cuda.slots import COMING, CudaExpertSlots
from penstock.backend.device import HOST_ROWS, ExpertSeconds, HostBackend

TOGETHER: Final = 4  # experts that the processors compute in a call, when it is measured what each takes
_READ_ONLY, _MAPPED, _PORTABLE = 8, 2, 1  # CU_MEMHOSTREGISTER_…


def pin(memory: Bytes) -> bool:
    torch.zeros(1, device="cuda")  # makes the card this thread's own
    start, nbytes = _pages(memory)
    for flags in (_PORTABLE | _MAPPED | _READ_ONLY, _PORTABLE | _MAPPED):
        (error,) = driver().cuMemHostRegister(start, nbytes, flags)
        if int(error) == 0:
            return True
    return False


def same_addresses() -> bool:
    """Whether kernels find pinned memory where the host does."""
    attribute = driver().CUdevice_attribute.CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM
    return bool(check(driver().cuDeviceGetAttribute(attribute, card().number), "addresses of pinned memory"))


def unpin(memory: Bytes) -> None:
    driver().cuMemHostUnregister(_pages(memory)[0])


def _pages(memory: Bytes) -> tuple[int, int]:
    first, size = memory.ctypes.data, mmap.PAGESIZE
    start = first // size * size
    return start, -(-(first + memory.size - start) // size) * size


def measure_experts(
    slots: CudaExpertSlots, experts: Sequence[HostExpert], host: HostBackend, at_hand: bool
) -> ExpertSeconds:
    """The processors while experts are on their way to the card, as in a step: both read the same memory.
    at_hand: the card brings them by itself"""
    count = min(slots.count, len(experts))
    sources = np.array([expert.parts for expert in experts[:count]], np.uint64).view(np.int64)
    pull = slots.pull(torch.from_numpy(sources).cuda())
    places = torch.arange(count, dtype=torch.int32, device="cuda") + COMING

    def begin() -> None:
        if at_hand:
            pull.launch(places)
        else:
            for slot, expert in enumerate(experts[:count]):
                slots.bring(slot, expert)

    def seconds(work: Callable[[], None]) -> float:
        started = time.perf_counter()
        work()
        return time.perf_counter() - started

    def bring() -> None:
        begin()
        torch.cuda.synchronize()

    bring()
    link = min(seconds(bring) for _ in range(3)) / count

    def computed(rows: int, together: int) -> float:
        """Of a call with so many experts."""
        works = host.expert_work(experts, rows, together)
        for work in works:  # makes threads and memory, and wakes the processors up
            work()
        begin()
        found = median(map(seconds, works))
        torch.cuda.synchronize()
        return found

    together = min(TOGETHER, len(experts))
    alone, some = computed(1, 1), computed(1, together)
    call = max(0.0, (together * alone - some) / (together - 1)) if together > 1 else 0.0
    others = [computed(rows, together) for rows in HOST_ROWS[1:]]
    each = tuple(max(1e-9, total - call) / together for total in (some, *others))
    return ExpertSeconds(link, each, call)
