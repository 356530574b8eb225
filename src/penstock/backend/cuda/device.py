"""The card at hand: what it is, what is free on it, and errors of its driver as ours."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, Final, NamedTuple, NoReturn

import torch

from penstock.errors import DeviceFullError, DeviceLostError, PenstockError

# Errors of the driver after which every call of this process fails: memory that cannot be corrected, a card that is
# gone, and kernels that did what they may not, from an illegal address (700) to a launch that failed (719).
LOST: Final = {46, 214, 220, 226, 700, 702, 709, 710, *range(714, 720), 802, 999}


FULL: Final = 2  # CUDA_ERROR_OUT_OF_MEMORY


class CudaError(PenstockError):
    """Something that the card or its driver refused."""


class CudaFullError(CudaError, DeviceFullError):
    """Its memory is full."""


# Bytes of shared memory that a block can have, of a capability: what a card may be made to look like for tests.
SHARED_LIMITS: Final = {(8, 0): 166_912, (8, 6): 101_376, (8, 9): 101_376, (9, 0): 232_448, (12, 0): 101_376}


class Card(NamedTuple):
    number: int
    name: str
    capability: tuple[int, int]
    multiprocessors: int
    shared_limit: int  # bytes of shared memory that a block can have
    memory: int  # bytes in all

    @property
    def arch(self) -> int:
        """The capability as the kernels know it: 860 is 8.6."""
        return 100 * self.capability[0] + 10 * self.capability[1]

    @property
    def bulk(self) -> bool:
        """Whether it has bulk copies, clusters of blocks, and kernels that begin before the one before them ends."""
        return self.capability >= (9, 0)

    @property
    def warpgroups(self) -> bool:
        """Whether four warps multiply together, from shared memory: instructions of Hopper alone."""
        return self.capability == (9, 0)

    @property
    def roomy(self) -> bool:
        """Whether a block's shared memory takes the inputs of many rows, or weights of several kinds: 227 KB, not 99
        or 163."""
        return self.shared_limit > 200 << 10

    @property
    def cluster_limit(self) -> int:
        """Blocks that can share their shared memory: 8 on every card that can do it, 16 on the large ones."""
        return 16 if self.capability[0] in (9, 10) else 8


@cache
def _card(index: int) -> Card:
    found, cuda = torch.cuda.get_device_properties(index), driver()
    attribute = cuda.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
    capability = (found.major, found.minor)
    shared = int(check(cuda.cuDeviceGetAttribute(attribute, index), "a block's shared memory"))
    if (wanted := pretended()) is not None:
        if wanted > capability:
            own = f"{capability[0]}.{capability[1]}"
            raise CudaError(f"PENSTOCK_CUDA_AS: {found.name} has capability {own}, no later one")
        capability, shared = wanted, min(shared, SHARED_LIMITS[wanted])
    return Card(index, found.name, capability, found.multi_processor_count, shared, found.total_memory)


def pretended() -> tuple[int, int] | None:
    """The capability that the card shall be treated as, by PENSTOCK_CUDA_AS: 8.6 on a newer card runs the kernels of
    older ones, within their shared memory.  For tests: nobody has every card."""
    text = os.environ.get("PENSTOCK_CUDA_AS", "")
    known = {f"{major}.{minor}": (major, minor) for major, minor in SHARED_LIMITS}
    if text and text not in known:
        raise CudaError(f"PENSTOCK_CUDA_AS is {text!r}; it may be {', '.join(known)}")
    return known.get(text)


def card() -> Card:
    """The current one."""
    return _card(torch.cuda.current_device())


def free_memory() -> int:
    """Bytes that the driver has to give."""
    return torch.cuda.mem_get_info()[0]


def measure() -> tuple[float, float]:
    """Bytes per second of reading the card's memory, and of copying to it from pinned memory."""
    size, host = 2 << 30, 256 << 20
    x = torch.zeros(size // 4, dtype=torch.int32, device="cuda")
    pinned = torch.zeros(host, dtype=torch.uint8).pin_memory()
    there = torch.zeros(host, dtype=torch.uint8, device="cuda")
    read = _fastest(lambda: x.max())
    copied = _fastest(lambda: there.copy_(pinned, non_blocking=True))
    return size / read, host / copied


def _fastest(work: Callable[[], object]) -> float:
    """Seconds on the card, the best of a few."""
    times = []
    for _ in range(4):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        work()
        end.record()
        end.synchronize()
        times.append(float(start.elapsed_time(end)) / 1e3)
    return min(times)


def driver() -> Any:
    from cuda.bindings import driver as found

    return found


def check(result: tuple[Any, ...], what: str) -> Any:
    """The value of a call of the driver, or CudaError."""
    error, *values = result
    if int(error) in LOST:
        _lost(what, error.name)
    if int(error) == FULL:
        raise CudaFullError(f"{what}: the GPU's memory is full")
    if int(error) != 0:
        raise CudaError(f"{what}: the CUDA driver says {error.name}")
    return values[0] if values else None


def _lost(what: str, why: str) -> NoReturn:
    raise DeviceLostError(f"the GPU is lost ({what}: {why}); it can be used again by a new process")


@contextmanager
def translated(what: str) -> Iterator[None]:
    """What torch raises for the card becomes an error of ours: it ends a request and not the server, unless the card
    is lost."""
    try:
        yield
    except torch.cuda.OutOfMemoryError as error:
        free, total = torch.cuda.mem_get_info()
        raise CudaFullError(
            f"{what}: the GPU's memory is full ({free / 2**30:.1f} of {total / 2**30:.1f} GiB are free); "
            "a shorter context, fewer sessions or a smaller prefill_chunk take less"
        ) from error
    except RuntimeError as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        (status,) = driver().cuCtxSynchronize()  # says it again if nothing works any more
        if int(status) in LOST:
            _lost(what, status.name)
        raise CudaError(f"{what}: {first}") from error
