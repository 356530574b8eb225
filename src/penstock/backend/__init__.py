"""What computes: one backend per device, behind the interfaces of `base`, `state` and `deepseek_v4`.

This is the one place that knows which backends exist.
"""

from penstock.backend.base import Backend
from penstock.errors import OptionError


def open_backend(device: str, threads: int, low_precision: bool = False) -> Backend:
    """The backend for `device`: "auto", "cpu", "cuda" or "cuda:N".

    threads        CPU threads that it may use
    low_precision  whether it rounds where the model's own inference code does
    """
    if device in ("auto", "cpu"):
        from penstock.backend.cpu.backend import CpuBackend

        return CpuBackend(threads, low_precision)
    if device.partition(":")[0] == "cuda":
        raise OptionError(f"device is {device!r}: this version has no CUDA backend, only cpu")
    raise OptionError(f"device is {device!r}, expected auto, cpu, cuda or cuda:N")
