"""The few calls of the CUDA driver that are made in the middle of a layer, without anything between them and Python.

Each takes one or two microseconds this way, a fifth of what it takes through an object for every argument.
"""

import ctypes
from ctypes import c_size_t, c_uint, c_uint64, c_void_p
from functools import cache
from typing import Any

from penstock.backend.cuda.device import LOST, CudaError
from penstock.errors import DeviceLostError


class DriverCalls:
    """Streams, events and functions are numbers, as torch and cuda-bindings give them."""

    def __init__(self) -> None:
        library = ctypes.CDLL("libcuda.so.1")
        self._copy = _call(library.cuMemcpyHtoDAsync_v2, c_uint64, c_void_p, c_size_t, c_void_p)
        self._launch = _call(library.cuLaunchKernel, c_void_p, *[c_uint] * 7, c_void_p, c_void_p, c_void_p)
        self._record = _call(library.cuEventRecord, c_void_p, c_void_p)
        self._wait_event = _call(library.cuStreamWaitEvent, c_void_p, c_void_p, c_uint)

    def copy(self, to: int, address: int, nbytes: int, stream: int) -> None:
        """From the host's memory."""
        if error := self._copy(to, address, nbytes, stream):
            _refused("copying an expert", error)

    def launch(self, function: int, grid: int, block: int, stream: int, arguments: int) -> None:
        if error := self._launch(function, grid, 1, 1, block, 1, 1, 0, stream, arguments, None):
            _refused("laying out an expert", error)

    def record(self, event: int, stream: int) -> None:
        if error := self._record(event, stream):
            _refused("an event", error)

    def wait_event(self, stream: int, event: int) -> None:
        if error := self._wait_event(stream, event, 0):
            _refused("waiting for an event", error)


def _call(function: Any, *types: Any) -> Any:
    function.argtypes, function.restype = types, ctypes.c_int
    return function


def _refused(what: str, error: int) -> None:
    if error in LOST:
        raise DeviceLostError(
            f"the GPU is lost ({what}: CUDA error {error}); it can be used again by a new process"
        )
    raise CudaError(f"{what}: the CUDA driver says error {error}")


@cache
def driver_calls() -> DriverCalls:
    return DriverCalls()
