"""Kernels as Python calls: loaded once, launched on a torch stream, or captured into a CUDA graph.

    >>> kernels = Module("norm.cu")
    >>> kernel = kernels.kernel("rms_norm", shared=4096)
    >>> kernel.launch(grid=132, block=256, args=(pointer(x), pointer(out), i32(4096)))

Inside a graph the cost of a launch in Python does not matter, so nothing here is clever.  `overlap` asks for
programmatic dependent launch: the kernel may start while the one before it still runs, and waits for its results
with `griddepcontrol.wait`.  Every kernel launched so must execute that instruction before it reads or writes
anything that another kernel writes or reads.
"""

import ctypes
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch

from penstock.backend.cuda.compile import KernelCache, default_folder, nvrtc_compiler, present_target
from penstock.errors import PenstockError

SHARED_LIMIT = 227 * 1024  # bytes of shared memory a block can have on Hopper

Argument = Any  # a ctypes scalar, or a ctypes structure passed by value


class CudaError(PenstockError):
    """A call of the CUDA driver that failed."""


def i32(value: int) -> Argument:
    return ctypes.c_int32(value)


def f32(value: float) -> Argument:
    return ctypes.c_float(value)


def pointer(tensor: torch.Tensor | None) -> Argument:
    """The device address of a tensor, or null.  The tensor must stay alive until the work is done."""
    return ctypes.c_void_p(0 if tensor is None else tensor.data_ptr())


def _driver() -> Any:
    from cuda.bindings import driver

    return driver


def _check(result: tuple[Any, ...], what: str) -> Any:
    error, *values = result
    if int(error) != 0:
        raise CudaError(f"{what}: the CUDA driver says {error.name}")
    return values[0] if values else None


@cache
def _kernel_cache() -> KernelCache:
    return KernelCache(default_folder(), nvrtc_compiler, present_target())


class Module:
    """One source file, compiled and loaded on the current device."""

    def __init__(self, source: str, *options: str):
        torch.cuda.init()
        torch.cuda.current_stream().synchronize()  # torch makes its context current on first use
        self._source = source
        self._code = _kernel_cache().get(source, *options)
        self._module = _check(_driver().cuModuleLoadData(self._code), f"loading {source}")

    def kernel(self, name: str, shared: int = 0) -> "Kernel":
        function = _check(
            _driver().cuModuleGetFunction(self._module, name.encode()), f"{self._source}: {name}"
        )
        return Kernel(name, function, shared)


@cache
def module(source: str, *options: str) -> Module:
    return Module(source, *options)


class Kernel:
    """A function on the device, with so many bytes of dynamic shared memory to each block."""

    def __init__(self, name: str, function: Any, shared: int):
        self.name, self.shared = name, shared
        self._function = function
        if shared > 48 * 1024:  # above this a kernel has to ask
            attribute = _driver().CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            # The most there is: others launch the same function, and this call must not lower what they need.
            _check(_driver().cuFuncSetAttribute(function, attribute, SHARED_LIMIT), f"{name}: shared memory")

    def launch(
        self, grid: int | tuple[int, ...], block: int, args: Sequence[Argument], overlap: bool = True
    ) -> None:
        driver = _driver()
        config = driver.CUlaunchConfig()
        sizes = (*((grid,) if isinstance(grid, int) else grid), 1, 1)
        config.gridDimX, config.gridDimY, config.gridDimZ = sizes[:3]
        config.blockDimX, config.blockDimY, config.blockDimZ = block, 1, 1
        config.sharedMemBytes = self.shared
        config.hStream = torch.cuda.current_stream().cuda_stream
        if overlap:
            attribute = driver.CUlaunchAttribute()
            attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
            attribute.value.programmaticStreamSerializationAllowed = 1
            config.attrs, config.numAttrs = [attribute], 1
        addresses = (ctypes.c_void_p * len(args))(*(ctypes.addressof(arg) for arg in args))
        what = f"{self.name}, grid {grid}, block {block}, {self.shared:,} shared bytes"
        _check(driver.cuLaunchKernelEx(config, self._function, ctypes.addressof(addresses), 0), what)


def capture(work: Callable[[], None]) -> torch.cuda.CUDAGraph:
    """`work` as a graph.  It is run once before, so that everything it needs is compiled and loaded."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        work()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph
