"""What computes: one backend per device, behind the interfaces of `base`, `state` and `deepseek_v4`.

This is the one place that knows which backends exist.
"""

from penstock.backend.base import Backend
from penstock.errors import OptionError
from penstock.machine.gpu import read_gpus


def open_backend(device: str, threads: int, low_precision: bool = False) -> Backend:
    """The backend for `device`: "cpu", "cuda" or "cuda:N".

    threads        CPU threads that it may use
    low_precision  whether it rounds where the model's own inference code does
    """
    kind, _, number = device.partition(":")
    if device == "cpu":
        from penstock.backend.cpu.backend import CpuBackend

        return CpuBackend(threads, low_precision)
    if kind == "cuda" and (number.isdecimal() or device == "cuda"):
        return _open_cuda(device, int(number or 0), threads, low_precision)
    raise OptionError(f"device is {device!r}, expected cpu, cuda or cuda:N")


def _open_cuda(device: str, index: int, threads: int, low_precision: bool) -> Backend:
    cards = read_gpus()
    if not cards:
        raise OptionError(f"device is {device!r}: this machine has no NVIDIA GPU that programs may use")
    if index >= len(cards):
        raise OptionError(f"device is {device!r}, expected cuda:0 to cuda:{len(cards) - 1}")
    if low_precision:
        raise OptionError(f"simulate_low_precision rounds on the CPU alone; device is {device!r}")
    try:
        from penstock.backend.cuda.backend import CudaBackend
    except ImportError as error:
        raise OptionError(
            f"device is {device!r}, which needs `pip install penstock[cuda]`: {error.name} is missing"
        ) from None
    from penstock.backend.cpu.backend import CpuBackend
    from penstock.backend.cpu.sampling import CpuSampling

    return CudaBackend(index, CpuSampling(threads), CpuBackend(threads))
