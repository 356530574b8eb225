"""What computes: one backend per device, behind the interfaces of `base`, `state` and `deepseek_v4`.

This is the one place that knows which backends exist.
"""

from penstock.backend.base import Backend
from penstock.errors import OptionError


def open_backend(device: str, threads: int) -> Backend:
    """The backend for `device`: "auto", "cpu", "cuda" or "cuda:N".  threads: CPU threads that it may use."""
    if device in ("auto", "cpu"):
        from penstock.backend.cpu.backend import CpuBackend

        return CpuBackend(threads)
    if device.partition(":")[0] == "cuda":
        raise OptionError(f"device is {device!r}: this version has no CUDA backend, only cpu")
    raise OptionError(f"device is {device!r}, expected auto, cpu, cuda or cuda:N")
