"""Kernels as Python calls: loaded once, launched on a torch stream, or captured into a CUDA graph.

    >>> kernels = Module("norm.cu")
    >>> kernel = kernels.kernel("rms_norm", shared=4096)
    >>> kernel.launch(grid=132, block=256, args=(pointer(x), pointer(out), i32(4096)))

Inside a graph the cost of a launch in Python does not matter, so nothing here is clever.  `overlap` asks for
programmatic dependent launch, where the card has it: the kernel may start while the one before it still runs, and
waits for its results with `griddepcontrol.wait`.  Every kernel launched so must execute that instruction before it
reads or writes anything that another kernel writes or reads.
"""

import ctypes
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any, NamedTuple

import torch

from penstock.backend.cuda.compile import KernelCache, default_folder, nvrtc_compiler, present_target
from penstock.backend.cuda.device import card, check, driver

Argument = Any  # a ctypes scalar, or a ctypes structure passed by value


def i32(value: int) -> Argument:
    return ctypes.c_int32(value)


def f32(value: float) -> Argument:
    return ctypes.c_float(value)


def pointer(tensor: torch.Tensor | None) -> Argument:
    """The device address of a tensor, or null.  The tensor must stay alive until the work is done."""
    return ctypes.c_void_p(0 if tensor is None else tensor.data_ptr())


@cache
def _kernel_cache() -> KernelCache:
    return KernelCache(default_folder(), nvrtc_compiler, present_target())


@cache
def _compilers() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(8, "penstock-nvrtc")


class Module:
    """One source file, compiled for the current device while others are, and loaded when it is first used."""

    def __init__(self, source: str, *options: str):
        torch.cuda.init()
        torch.cuda.current_stream().synchronize()  # torch makes its context current on first use
        self._source = source
        self._code = _compilers().submit(_kernel_cache().get, source, *options)
        self._module: Any = None

    def function(self, name: str) -> Any:
        if self._module is None:
            self._module = check(driver().cuModuleLoadData(self._code.result()), f"loading {self._source}")
        return check(driver().cuModuleGetFunction(self._module, name.encode()), f"{self._source}: {name}")

    def kernel(self, name: str, shared: int = 0, cluster: int = 1) -> "Kernel":
        return Kernel(self, name, shared, cluster)


@cache
def module(source: str, *options: str) -> Module:
    return Module(source, *options)


@cache
def kernel(source: str, name: str, shared: int = 0) -> "Kernel":
    """For launches that are not kept: looked up once."""
    return module(source).kernel(name, shared)


class Kernel:
    """A function on the device, with so many bytes of dynamic shared memory to each block, and so many blocks (of
    neighbours in x) in a cluster."""

    def __init__(self, owner: Module, name: str, shared: int, cluster: int = 1):
        self.name, self.shared, self.cluster = name, shared, cluster
        self._owner, self._function = owner, None

    def _ready(self) -> Any:
        if self._function is None:
            function = self._owner.function(self.name)
            if self.shared > 48 * 1024:  # above this a kernel has to ask
                attribute = driver().CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
                # The most there is: others launch the same function, and this must not lower what they need.
                result = driver().cuFuncSetAttribute(function, attribute, card().shared_limit)
                check(result, f"{self.name}: shared memory")
            if self.cluster > 8:  # more than every card has
                attribute = driver().CUfunction_attribute.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
                check(driver().cuFuncSetAttribute(function, attribute, 1), f"{self.name}: large clusters")
            self._function = function
        return self._function

    def launch(
        self, grid: int | tuple[int, ...], block: int, args: Sequence[Argument], overlap: bool = True
    ) -> None:
        cuda = driver()
        config = cuda.CUlaunchConfig()
        sizes = (*((grid,) if isinstance(grid, int) else grid), 1, 1)
        config.gridDimX, config.gridDimY, config.gridDimZ = sizes[:3]
        config.blockDimX, config.blockDimY, config.blockDimZ = block, 1, 1
        config.sharedMemBytes = self.shared
        config.hStream = torch.cuda.current_stream().cuda_stream
        attributes = []
        if overlap and card().bulk:
            attribute = cuda.CUlaunchAttribute()
            attribute.id = cuda.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
            attribute.value.programmaticStreamSerializationAllowed = 1
            attributes.append(attribute)
        if self.cluster > 1:
            attribute = cuda.CUlaunchAttribute()
            attribute.id = cuda.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
            size = attribute.value.clusterDim
            size.x, size.y, size.z = self.cluster, 1, 1
            attributes.append(attribute)
        config.attrs, config.numAttrs = attributes, len(attributes)
        addresses = (ctypes.c_void_p * len(args))(*(ctypes.addressof(arg) for arg in args))
        what = f"{self.name}, grid {grid}, block {block}, {self.shared:,} shared bytes"
        check(cuda.cuLaunchKernelEx(config, self._ready(), ctypes.addressof(addresses), 0), what)


class Turn(NamedTuple):
    """What the host has to do in the middle of launched work, and who waits for it: a kernel.

    answer   waits until the card has come that far, then lets it go on
    give_up  lets it go on whatever becomes of it, because there will be no answer
    ahead    whether what follows may be launched before the host has had its turn.  If so, nothing that it does may
             wait for the card
    """

    answer: Callable[[], object]
    give_up: Callable[[], object]
    ahead: bool


class Recording:
    """The launches of a thread, on their way into graphs; `parts` are what launches them and what the host does in
    between, in order."""

    def __init__(self) -> None:
        self.parts: list[Callable[[], object]] = []
        self.give_up: Callable[[], object] | None = None
        self._graph: torch.cuda.CUDAGraph | None = None
        self._turns: list[Callable[[], object]] = []  # of the graph that is being recorded

    def begin(self) -> None:
        self._graph = torch.cuda.CUDAGraph()
        self._graph.capture_begin(capture_error_mode="thread_local")

    def end(self) -> None:
        """The next graph is launched when the host has had its turns in this one: until then the card may be waiting
        for it, and the first launch of a graph for the card."""
        assert self._graph is not None
        self._graph.capture_end()
        self.parts += [self._graph.replay, *self._turns]
        self._turns = []

    def turn(self, turn: Turn) -> None:
        self.give_up = turn.give_up
        self._turns.append(turn.answer)
        if not turn.ahead:
            self.end()
            self.begin()


_recordings: list[Recording] = []  # the one that is under way


def cut() -> None:
    """Where work that is being recorded may be cut in two: to launch a long graph takes the host a while, and the
    card has the short one before it to do meanwhile."""
    for recording in _recordings:
        recording.end()
        recording.begin()


def take_turn(turn: Turn) -> None:
    """The host's, every time this work is done."""
    for recording in _recordings:
        recording.turn(turn)
    if not _recordings:
        _guarded([turn.answer], turn.give_up)


def capture(work: Callable[[], object]) -> Recording:
    """`work` as calls, to be made one after the other, that launch graphs.  It must have been run before, so that
    everything it needs is compiled and loaded."""
    torch.cuda.synchronize()
    recording = Recording()
    _recordings.append(recording)
    try:
        with torch.cuda.stream(torch.cuda.Stream()):
            recording.begin()
            try:
                work()
            finally:
                recording.end()
    finally:
        _recordings.remove(recording)
    return recording


def _guarded(parts: Sequence[Callable[[], object]], give_up: Callable[[], object] | None) -> None:
    """Whatever goes wrong, no kernel waits for ever."""
    try:
        for part in parts:
            part()
    except BaseException:
        if give_up is not None:
            give_up()
        raise


class Recorded:
    """Work that is run the first time, recorded the second time, and repeated from then on."""

    def __init__(self, work: Callable[[], Any]):
        self._work: Callable[[], Any] | None = work
        self._recording: Recording | None = None
        self._result: Any = None
        self._ran = False

    @property
    def recorded(self) -> bool:
        return self._recording is not None

    def run(self) -> Any:
        """What `work` returned.  Where it lies is the same every time."""
        if not self._ran:
            assert self._work is not None
            self._result, self._ran = self._work(), True
            return self._result
        if self._recording is None:
            assert self._work is not None
            self._recording = capture(self._work)
            self._work = None
        _guarded(self._recording.parts, self._recording.give_up)
        return self._result
