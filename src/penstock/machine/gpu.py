"""NVIDIA cards as their driver describes them.  Neither torch nor a context on a card is needed to ask."""

import ctypes
from ctypes import byref, c_char_p, c_int, c_size_t, c_ulonglong, c_void_p
from functools import cache
from typing import Any, Final, NamedTuple

OLDEST: Final = (8, 0)  # compute capability that the CUDA kernels need

_MULTIPROCESSORS, _MAJOR, _MINOR, _MEMORY_CLOCK, _BUS_WIDTH = 16, 75, 76, 36, 37


class Gpu(NamedTuple):
    number: int
    name: str
    memory: int  # bytes
    capability: tuple[int, int]
    multiprocessors: int
    driver: str  # the newest CUDA that it speaks
    bandwidth: float = 0.0  # bytes per second of its memory, as its clock and width say


class GpuMemory(NamedTuple):
    """Bytes, as the driver counts them for the whole card."""

    total: int
    free: int


@cache
def _cuda() -> Any | None:
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    return library if library.cuInit(0) == 0 else None


@cache
def read_gpus() -> tuple[Gpu, ...]:
    """The cards of this machine that programs may use."""
    cuda = _cuda()
    if cuda is None:
        return ()
    count, version = c_int(), c_int()
    if cuda.cuDeviceGetCount(byref(count)) or cuda.cuDriverGetVersion(byref(version)):
        return ()
    found = []
    for index in range(count.value):
        device, memory, name = c_int(), c_size_t(), ctypes.create_string_buffer(256)
        if cuda.cuDeviceGet(byref(device), index):
            continue
        cuda.cuDeviceGetName(name, len(name), device)
        cuda.cuDeviceTotalMem_v2(byref(memory), device)

        def attribute(number: int, device: c_int = device) -> int:
            value = c_int()
            cuda.cuDeviceGetAttribute(byref(value), number, device)
            return value.value

        found.append(
            Gpu(
                index,
                name.value.decode(errors="replace"),
                memory.value,
                (attribute(_MAJOR), attribute(_MINOR)),
                attribute(_MULTIPROCESSORS),
                f"{version.value // 1000}.{version.value % 1000 // 10}",
                2e3 * attribute(_MEMORY_CLOCK) * attribute(_BUS_WIDTH) / 8,
            )
        )
    return tuple(found)


class _Memory(ctypes.Structure):
    _fields_ = (("total", c_ulonglong), ("free", c_ulonglong), ("used", c_ulonglong))


def read_gpu_memory(index: int) -> GpuMemory | None:
    """The driver's own count (NVML), whoever uses the card; None if it cannot be asked."""
    cuda = _cuda()
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None
    if cuda is None or nvml.nvmlInit_v2():
        return None
    # Programs may see fewer cards than the driver has: found by where it is plugged in.
    device, place, handle, memory = c_int(), ctypes.create_string_buffer(32), c_void_p(), _Memory()
    if cuda.cuDeviceGet(byref(device), index) or cuda.cuDeviceGetPCIBusId(place, len(place), device):
        return None
    if nvml.nvmlDeviceGetHandleByPciBusId_v2(c_char_p(place.value), byref(handle)):
        return None
    return (
        None if nvml.nvmlDeviceGetMemoryInfo(handle, byref(memory)) else GpuMemory(memory.total, memory.free)
    )
