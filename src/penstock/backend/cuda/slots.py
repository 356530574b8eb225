"""Slots of a card's memory in which experts come and go, and their way there.

What is brought before it is needed, and what passes through, is copied in the file's bytes and laid out in cells by
the card, on streams of their own: while one expert is laid out, the next is copied.  What a step needs at once its
own kernels bring (`Pull`).  Slots are addresses in two reservations, so that kernels find an expert by its slot's
number, and memory can be given back from the end.
"""

import ctypes
from collections.abc import Callable, Sequence
from math import gcd, lcm
from typing import Final

import numpy as np
import torch

from penstock.backend.base import ExpertSlots, HostExpert
from penstock.backend.cuda.device import CudaError, card
from penstock.backend.cuda.driver_calls import driver_calls
from penstock.backend.cuda.launch import module
from penstock.backend.cuda.layouts import LAYOUTS, TILE
from penstock.backend.cuda.memory import Pages, Reservation
from penstock.backend.cuda.placed import expert_kind, packed_bytes
from penstock.backend.cuda.weights import Packed, RepackArgument, repack_argument
from penstock.weights import types
from penstock.weights.tensor import TensorInfo

LANES: Final = (
    4  # streams that take turns: while some lay out what has come, others have copies to go on with
)
RUN: Final = 8  # experts that are copied together, where they lie behind one another
PULLERS: Final = (
    64  # blocks that bring experts: enough that the link never rests, and tiles are laid out meanwhile
)
STAGES: Final = 2  # tiles that each of them has under way, where its shared memory has room
COMING: Final = 1 << 30  # beside a slot's number: its expert has to be brought there first
COMINGS: Final = 3200  # bytes of shared memory before them, as in kernels/tiers.cu
SEGMENT: Final = 32  # slots at least, whose memory is given back together
MOST_SEGMENT: Final = 256


class _Expert(ctypes.Structure):
    _fields_ = (
        ("gate", RepackArgument), ("up", RepackArgument), ("down", RepackArgument),
        ("scales", ctypes.c_void_p * 3), ("arrived", ctypes.c_void_p),
        ("up_block", ctypes.c_int32), ("down_block", ctypes.c_int32),
    )  # fmt: skip


class PullArgument(ctypes.Structure):
    _fields_ = (
        ("gate", RepackArgument), ("up", RepackArgument), ("down", RepackArgument),
        ("pair", ctypes.c_size_t), ("single", ctypes.c_size_t), ("sources", ctypes.c_void_p),
        ("experts", ctypes.c_int32), ("stages", ctypes.c_int32), ("stage_bytes", ctypes.c_int32),
        ("scales_at", ctypes.c_int32),
    )  # fmt: skip


class _Lane:
    """A stream, and memory for some experts as they are stored.

    arrived: on the card: counts blocks of what was brought
    """

    def __init__(self, infos: Sequence[TensorInfo], gate_up: Packed, down: Packed, arrived: int):
        # Before all others: a kernel of another stream may be waiting for what comes by this one.
        self.stream = torch.cuda.Stream(priority=-1)
        self.number: int = self.stream.cuda_stream
        self.event = torch.cuda.Event()
        self.event.record(self.stream)  # makes it
        self.used = False
        sizes = stored_sizes(infos)
        self._memory = torch.empty(RUN * sum(sizes), dtype=torch.uint8, device="cuda")
        self.stages = [self._memory.data_ptr() + RUN * sum(sizes[:part]) for part in range(len(sizes))]
        matrices = zip(infos, (gate_up, gate_up, down), strict=True)
        blocks = [-(-tiles_of(info) * packed.cells // 8) for info, packed in matrices]
        self.argument = _Expert(
            repack_argument(self.stages[0], gate_up, infos[0].shape[0]),
            repack_argument(self.stages[1], gate_up, infos[1].shape[0], second=True),
            repack_argument(self.stages[2], down, infos[2].shape[0]),
            (ctypes.c_void_p * 3)(), arrived, blocks[0], blocks[0] + blocks[1],
        )  # fmt: skip
        self.blocks = sum(blocks)
        self._arguments = (ctypes.c_void_p * 1)(ctypes.addressof(self.argument))
        self.arguments = ctypes.addressof(self._arguments)


class CudaExpertSlots(ExpertSlots):
    """infos: of one expert's gate, up and down; all others are alike."""

    def __init__(self, infos: Sequence[TensorInfo], count: int, pages: Pages):
        (width, hidden), kinds = infos[0].shape, [expert_kind(info) for info in infos]
        self._sizes = slot_sizes(infos)
        step = slot_step(infos, pages.size)
        self._segment = step if step > 1 else count
        self._pages = pages
        self._nbytes = stored_sizes(infos)
        self._memory = [Reservation(pages, count * size) for size in self._sizes]
        self._most, self.count = count, 0
        if self.resize(count) < count:
            raise CudaError(f"memory for {count:,} experts: the GPU's memory is full")
        views = [
            pages.view(memory.address, count * size)
            for memory, size in zip(self._memory, self._sizes, strict=True)
        ]
        self.gate_up = Packed(views[0], kinds[0], width, hidden, count, paired=True)
        self.down = Packed(views[1], kinds[2], hidden, width, count)
        self.arrived = torch.zeros(LANES, dtype=torch.int32, device="cuda")
        # What `arrived` will be when all that was asked for so far is there
        self.arrivals = np.zeros(LANES, np.uint32)
        self._lanes = [
            _Lane(infos, self.gate_up, self.down, self.arrived.data_ptr() + 4 * lane) for lane in range(LANES)
        ]
        self._turn, self._calls = 0, driver_calls()
        self.module = module("tiers.cu", *formats_of(infos))
        self._function = int(self.module.function("repack_expert"))
        self._infos = infos

    def bring(self, slot: int, expert: HostExpert) -> None:
        self._bring((slot,), expert.parts)

    def bring_all(self, slots: Sequence[int], experts: Sequence[HostExpert]) -> None:
        """Neighbours in the file are copied together: every copy costs the link a few microseconds besides."""
        first, parts = 0, experts[0].parts if experts else ()
        for at in range(1, len(experts) + 1):
            count = at - first
            if count < RUN and at < len(experts):
                following = [part + count * size for part, size in zip(parts, self._nbytes, strict=True)]
                if list(experts[at].parts) == following:
                    continue
            self._bring(slots[first:at], parts)
            if at < len(experts):
                first, parts = at, experts[at].parts

    def _bring(self, slots: Sequence[int], parts: Sequence[int]) -> None:
        """Experts that lie behind one another, the first at `parts`."""
        turn, calls, sizes = self._turn, self._calls, self._nbytes
        lane = self._lanes[turn]
        self._turn = (turn + 1) % LANES
        for stage, part, nbytes in zip(lane.stages, parts, sizes, strict=True):
            calls.copy(stage, part, len(slots) * nbytes, lane.number)
        argument, (pair, single), (gate, up, down, *scales) = lane.argument, self._sizes, lane.stages
        for number, slot in enumerate(slots):
            assert 0 <= slot < self.count
            argument.gate.raw, argument.up.raw = gate + number * sizes[0], up + number * sizes[1]
            argument.down.raw = down + number * sizes[2]
            for part, scale in enumerate(scales):
                argument.scales[part] = scale + number * sizes[3 + part]
            argument.gate.out = argument.up.out = self._memory[0].address + slot * pair
            argument.down.out = self._memory[1].address + slot * single
            calls.launch(self._function, lane.blocks, 256, lane.number, lane.arguments)
        self.arrivals[turn] += np.uint32(len(slots) * lane.blocks)
        lane.used = True

    def pull(self, sources: torch.Tensor) -> "Pull":
        """sources: on the card, uint64 as int64 [experts, parts]: where the host has what it may be asked for"""
        return Pull(self, self._infos, sources)

    def join(self) -> None:
        stream = torch.cuda.current_stream().cuda_stream
        for lane in self._lanes:
            if lane.used:
                self._calls.record(lane.event.cuda_event, lane.number)
                self._calls.wait_event(stream, lane.event.cuda_event)
                lane.used = False

    def mark(self) -> Callable[[], None]:
        event = torch.cuda.Event()
        event.record()

        def wait() -> None:
            for lane in self._lanes:
                lane.stream.wait_event(event)

        return wait

    def wait(self) -> None:
        for lane in self._lanes:
            lane.stream.synchronize()

    def resize(self, count: int) -> int:
        wanted = min(self._most, -(-max(1, count) // self._segment) * self._segment)
        if wanted < self.count:
            self._pages.wait()
            for memory, size in zip(self._memory, self._sizes, strict=True):
                memory.uncommit(wanted * size, self.count * size)
            self.count = wanted
        while self.count < wanted:
            last = min(self._most, self.count + self._segment)
            try:
                for memory, size in zip(self._memory, self._sizes, strict=True):
                    memory.commit(self.count * size, last * size)
            except CudaError:
                for memory, size in zip(self._memory, self._sizes, strict=True):
                    memory.uncommit(self.count * size, last * size)
                break
            self.count = last
        return self.count


class Pull:
    """How kernels bring experts of a layer to slots, from wherever `sources` says they lie."""

    def __init__(self, slots: CudaExpertSlots, infos: Sequence[TensorInfo], sources: torch.Tensor):
        (width, hidden), (pair, single) = infos[0].shape, slot_sizes(infos)
        tile = max(_around(TILE * info.nbytes // info.shape[0]) for info in infos)
        scales = [
            _around(TILE * info.scale.nbytes // info.shape[0]) for info in infos if info.scale is not None
        ]
        stage = tile + max(scales, default=0)
        stages = max(1, min(STAGES, (card().shared_limit - COMINGS) // stage))
        self.argument = PullArgument(
            repack_argument(0, slots.gate_up, width), repack_argument(0, slots.gate_up, width, second=True),
            repack_argument(0, slots.down, hidden), pair, single, sources.data_ptr(), len(sources), stages, stage,
            tile,
        )  # fmt: skip
        self.shared, self.module = COMINGS + stages * stage, slots.module
        self._keep = (slots, sources)

    def launch(self, places: torch.Tensor) -> None:
        """By itself.  places: int32 [experts], on the card: slots, marked with `COMING`; −1: others"""
        kernel = self.module.kernel("pull_experts", self.shared)
        kernel.launch(PULLERS, 256, (self.argument, ctypes.c_void_p(places.data_ptr())), overlap=False)


def _around(nbytes: int) -> int:
    """Room for whole pieces of 16 bytes around so many, wherever these begin."""
    return -(-(nbytes + 32) // 128) * 128


def tiles_of(info: TensorInfo) -> int:
    return -(-info.shape[0] // TILE)


def slot_sizes(infos: Sequence[TensorInfo]) -> tuple[int, int]:
    """Bytes of gate and up together, and of down."""
    gate, up, down = (packed_bytes(expert_kind(info), *info.shape) for info in infos)
    return gate + up, down


def scales_apart(infos: Sequence[TensorInfo]) -> bool:
    """Whether these are FP4 with their scales in tensors of their own."""
    return all(info.kind is types.FP4_E2M1 and info.scale is not None for info in infos)


def stored_sizes(infos: Sequence[TensorInfo]) -> list[int]:
    """Bytes of gate, up and down as they are stored, then of their scales where these lie apart."""
    return [info.nbytes for info in infos] + [info.scale.nbytes for info in infos if info.scale is not None]


def slot_step(infos: Sequence[TensorInfo], page: int) -> int:
    """Slots that make up whole pages in both reservations; 1 where that would be so many that all of them stay."""
    whole = lcm(*(page // gcd(page, size) for size in slot_sizes(infos)))
    return -(-SEGMENT // whole) * whole if whole <= MOST_SEGMENT else 1


def formats_of(infos: Sequence[TensorInfo]) -> list[str]:
    """What kernels that lay out experts are compiled for."""
    formats = [f"-DUP_FORMAT={_format(infos[0])}", f"-DDOWN_FORMAT={_format(infos[2])}"]
    return [*formats, "-DSCALES_APART"] if scales_apart(infos) else formats


def _format(info: TensorInfo) -> str:
    kind = expert_kind(info)
    assert kind in LAYOUTS
    return kind.name


def staged_bytes(infos: Sequence[TensorInfo]) -> int:
    return LANES * RUN * sum(stored_sizes(infos))
