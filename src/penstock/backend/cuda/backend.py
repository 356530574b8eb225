"""A CUDA card as a backend."""

from collections.abc import Callable, Sequence
from mmap import PAGESIZE
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakSet

import torch
from numpy.typing import NDArray

from penstock.backend.base import (
    Bytes,
    DeviceExpert,
    DeviceWeight,
    ExpertSlots,
    HostExpert,
    Sampling,
)
from penstock.backend.cuda.deepseek_v4.long_memory import LongMemory
from penstock.backend.cuda.deepseek_v4.sizes import LONG_ROWS, STEP_ROWS, takes_long_steps
from penstock.backend.cuda.device import Card, CudaError, card, free_memory, measure, translated
from penstock.backend.cuda.held_stack import CudaHeldStack, kinds_of
from penstock.backend.cuda.link import measure_experts, pin, same_addresses, unpin
from penstock.backend.cuda.memory import device_pages
from penstock.backend.cuda.placed import (
    TABLE_KINDS,
    CudaExpert,
    CudaExpertStack,
    CudaWeight,
    experts_are_fast,
    packed_bytes,
    packed_kind,
    row_kind,
    stack_bytes,
)
from penstock.backend.cuda.prefill_products import prepare
from penstock.backend.cuda.sample import CudaSampling
from penstock.backend.cuda.slots import CudaExpertSlots, scales_apart, slot_sizes, slot_step, staged_bytes
from penstock.backend.cuda.states import CudaStates, SlotLayout
from penstock.backend.device import DeviceBackend, DeviceSpeeds, ExpertSeconds, HostBackend, KernelTime
from penstock.backend.state import StateLayout, StatePool
from penstock.errors import OptionError
from penstock.machine.gpu import OLDEST, read_gpu_memory
from penstock.weights.config import ModelConfig
from penstock.weights.tensor import TensorInfo

if TYPE_CHECKING:
    from penstock.backend.cuda.deepseek_v4.ops import CudaOps

# The driver's context, kernels, graphs and what torch's allocator rounds up to.
PROGRAM: Final = 1 << 30


class CudaBackend(DeviceBackend):
    """index: which card; sampling: what chooses tokens from logits on the host; beside: the host's processors, which
    compute experts that the card has no room for."""

    name = "cuda"

    def __init__(self, index: int, sampling: Sampling, beside: HostBackend):
        if not torch.cuda.is_available():
            raise CudaError("this torch cannot use the GPU: it was built without CUDA, or for another driver")
        self.index, self._beside = index, beside
        self.activate()
        self.card: Card = card()
        if self.card.capability < OLDEST:
            (major, minor), (least, _) = self.card.capability, OLDEST
            raise CudaError(
                f"{self.card.name} has compute capability {major}.{minor}; "
                f"the kernels need {least}.0 (Ampere) or later"
            )
        self.sampling = CudaSampling(sampling)
        self.long_steps = False  # what `step_rows` found last
        self.steps = {"repeated": 0, "launched": 0}
        self._pools: WeakSet[CudaStates] = WeakSet()
        self._long_memories: WeakSet[LongMemory] = WeakSet()

    @property
    def beside(self) -> HostBackend:
        return self._beside

    def end_long_steps(self) -> None:
        for memory in self._long_memories:
            memory.clear()
        self.release()

    def note_long_memory(self, memory: LongMemory) -> None:
        """Working memory that `end_long_steps` gives back."""
        self._long_memories.add(memory)

    def activate(self) -> None:
        """Makes the card the calling thread's own."""
        torch.cuda.set_device(self.index)

    def count_step(self, recorded: bool) -> None:
        self.steps["repeated" if recorded else "launched"] += 1

    @property
    def description(self) -> str:
        major, minor = self.card.capability
        return f"{self.card.name}, {self.card.memory / 2**30:.0f} GiB, compute capability {major}.{minor}"

    def speeds(self) -> DeviceSpeeds:
        self.activate()
        with translated("measuring the GPU"):
            return DeviceSpeeds(*measure())

    def profile(self, work: Callable[[], object]) -> list[KernelTime]:
        from penstock.backend.cuda.profile import by_name, record

        self.activate()
        with translated("measuring the GPU"):
            return by_name(record(work))

    def stats(self) -> dict[str, Any]:
        counted = read_gpu_memory(self.index)
        return {
            "name": self.card.name,
            "memory_bytes": self.card.memory if counted is None else counted.total,
            "used_bytes": None if counted is None else counted.total - counted.free,
            "session_bytes": sum(pool.committed for pool in self._pools),
            "steps_repeated": self.steps["repeated"],
            "steps_launched": self.steps["launched"],
        }

    def weight(self, info: TensorInfo) -> CudaWeight:
        self.activate()
        return CudaWeight(info)

    def expert(self, gate: DeviceWeight, up: DeviceWeight, down: DeviceWeight) -> DeviceExpert:
        assert isinstance(gate, CudaWeight)
        assert isinstance(up, CudaWeight)
        assert isinstance(down, CudaWeight)
        with translated("an expert"):
            return CudaExpert(gate, up, down)

    def expert_stack(self, experts: Sequence[Sequence[TensorInfo]], used: int) -> CudaExpertStack:
        self.activate()
        with translated("experts"):
            stack = CudaExpertStack(experts, used)
        if self.long_steps:
            prepare((m.kind, m.paired) for m in (stack.gate_up, stack.down) if m is not None)
        return stack

    def held_stack(self, experts: Sequence[Sequence[TensorInfo]], used: int) -> CudaHeldStack:
        self.activate()
        with translated("experts"):
            stack = CudaExpertStack(experts, used)
        if not stack.fast:
            raise OptionError(
                f"device is {self.name!r}: {self.card.name} has no products for experts of type "
                f"{kinds_of(experts)} alone; device cpu does that"
            )
        return CudaHeldStack(stack)

    def stack_bytes(self, experts: Sequence[Sequence[TensorInfo]], used: int) -> int:
        return stack_bytes(experts, used)

    def weight_bytes(self, info: TensorInfo, by_row: bool = False) -> int:
        if by_row:
            return row_kind(info.kind, TABLE_KINDS).nbytes(info.shape)
        return packed_bytes(packed_kind(info), *info.shape)

    def states(self, layout: StateLayout) -> CudaStates:
        self.activate()
        pool = CudaStates(layout, device_pages(self.index))
        self._pools.add(pool)
        return pool

    def state_bytes(self, layout: StateLayout, position: int) -> int:
        page = device_pages(self.index).size
        return SlotLayout(layout, page).committed(position, page)

    def limit(self, states: StatePool, nbytes: int) -> None:
        assert isinstance(states, CudaStates)
        states.limit = nbytes

    def step_rows(self, config: ModelConfig, kv_dtype: str, experts: Sequence[Sequence[TensorInfo]]) -> int:
        self.long_steps = takes_long_steps(config, kv_dtype, experts)
        return LONG_ROWS if self.long_steps else STEP_ROWS

    @property
    def free_bytes(self) -> int:
        self.activate()
        return free_memory() + torch.cuda.memory_reserved() + sum(pool.committed for pool in self._pools)

    # ── experts that come and go ──────────────────────────────────────────────────────────────────────────

    def slot_bytes(self, experts: Sequence[Sequence[TensorInfo]], used: int) -> int | None:
        same = all(
            info.kind is first.kind
            for expert in experts
            for info, first in zip(expert, experts[0], strict=True)
        )
        plain = all(info.scale is None for info in experts[0]) or scales_apart(experts[0])
        if not (same and plain and experts_are_fast(experts, used)):
            return None
        return sum(slot_sizes(experts[0]))

    def slot_step(self, expert: Sequence[TensorInfo]) -> int:
        return slot_step(expert, device_pages(self.index).size)

    def bringing_bytes(self, experts: Sequence[Sequence[TensorInfo]]) -> int:
        return staged_bytes(experts[0])

    def expert_slots(self, experts: Sequence[Sequence[TensorInfo]], count: int, used: int) -> CudaExpertSlots:
        self.activate()
        with translated("experts"):
            assert self.slot_bytes(experts, used) is not None
            slots = CudaExpertSlots(experts[0], count, device_pages(self.index))
        if self.long_steps:
            prepare([(slots.gate_up.kind, True), (slots.down.kind, False)])
        return slots

    def expert_seconds(
        self, slots: ExpertSlots, experts: Sequence[HostExpert], at_hand: bool
    ) -> ExpertSeconds:
        assert isinstance(slots, CudaExpertSlots)
        self.activate()
        with translated("measuring the link"):
            return measure_experts(slots, experts, self.beside, at_hand)

    @property
    def reaches_host(self) -> bool:
        self.activate()
        return same_addresses()

    def pin(self, memory: Bytes) -> bool:
        self.activate()
        return pin(memory)

    def unpin(self, memory: Bytes) -> None:
        unpin(memory)

    # ── loading ───────────────────────────────────────────────────────────────────────────────────────────

    def staging(self, nbytes: int) -> Bytes:
        pinned: Bytes = torch.empty(nbytes + PAGESIZE, dtype=torch.uint8).pin_memory().numpy()
        start = -pinned.ctypes.data % PAGESIZE  # direct reads begin at whole pages
        return pinned[start : start + nbytes]

    def fence(self) -> Callable[[], None]:
        event = torch.cuda.Event()
        event.record()
        return event.synchronize

    def host(self, array: Any) -> NDArray[Any]:
        from penstock.backend.cuda.deepseek_v4.hyper import Streams
        from penstock.backend.cuda.deepseek_v4.long_steps import LongStreams

        with translated("reading from the GPU"):
            found = array.settle() if isinstance(array, Streams | LongStreams) else array
            copied: NDArray[Any] = found.cpu().numpy()
        return copied

    def check(self) -> None:
        """Errors of kernels show when their results are fetched."""

    def release(self) -> None:
        """Gives memory that nobody uses back to the driver."""
        self.activate()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()

    @property
    def program_bytes(self) -> int:
        return PROGRAM

    def deepseek_v4(self) -> "type[CudaOps]":
        from penstock.backend.cuda.deepseek_v4.ops import CudaOps

        return CudaOps
