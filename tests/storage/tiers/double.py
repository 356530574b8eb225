"""A device that is none: its memory is a numpy array, it computes with the processors, and copies arrive as late as
they may."""

import ctypes
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from penstock.backend import deepseek_v4 as v4
from penstock.backend.base import Bytes, DividedLease, ExpertSlots, HostExpert
from penstock.backend.cpu.backend import CpuBackend
from penstock.backend.cpu.deepseek_v4.ops import CpuOps
from penstock.backend.cpu.host_share import CpuShare
from penstock.backend.cpu.memory import Buffer
from penstock.backend.cpu.weights import CpuExpert, CpuExpertTable, CpuWeight
from penstock.backend.device import DeviceBackend, DeviceSpeeds, ExpertSeconds, HeldStack, KernelTime, Meeting
from penstock.backend.state import StateLayout, StatePool
from penstock.engine import loader
from penstock.engine.engine import Engine
from penstock.engine.options import EngineOptions
from penstock.engine.planning import plan_engine
from penstock.errors import BudgetError
from penstock.native.library import native
from penstock.storage.plan import SLACK
from penstock.storage.tiers import plan as tier_plan
from penstock.storage.tiers.placement import LONG
from penstock.weights.opening import open_checkpoint
from penstock.weights.tensor import TensorInfo

COMING = 1 << 30  # beside a slot: its expert has to be brought there first


class DoubleWeight(CpuWeight):
    """Has its bytes in memory of its own, as on a device."""

    def place(self, raw: Bytes, scale: Bytes | None = None) -> None:
        super().place(raw.copy(), None if scale is None else scale.copy())


class DoubleSlots(ExpertSlots):
    def __init__(self, infos: Sequence[TensorInfo], count: int, device: "Double"):
        self.count, self._infos, self._device = count, infos, device
        self._memory = np.full((count, sum(info.nbytes for info in infos)), 255, np.uint8)
        self._coming: list[tuple[int, CpuExpert]] = []
        self.brought = 0

    def bring(self, slot: int, expert: HostExpert) -> None:
        assert isinstance(expert, CpuExpert)
        assert 0 <= slot < self.count
        self._coming.append((slot, expert))
        self.brought += 1

    def pull(self, slot: int, sources: NDArray[np.uint64]) -> None:
        """At once, from where native code says that an expert lies."""
        assert 0 <= slot < self.count
        raw = [ctypes.string_at(int(at), info.nbytes) for at, info in zip(sources, self._infos, strict=True)]
        self._memory[slot] = np.frombuffer(b"".join(raw), np.uint8)
        self.brought += 1

    def join(self) -> None:
        for slot, expert in self._coming:
            at = 0
            for weight in expert.weights:
                assert weight.stored is not None
                raw = weight.stored.raw.reshape(-1)
                self._memory[slot, at : at + raw.size] = raw
                at += raw.size
        self._coming.clear()

    wait = join

    def mark(self) -> Callable[[], None]:
        return lambda: None

    def resize(self, count: int) -> int:
        self.count = min(count, len(self._memory), self._device.most_slots)
        self._memory[self.count :] = 255
        return self.count

    def expert(self, slot: int) -> CpuExpert:
        """What kernels see."""
        assert 0 <= slot < self.count
        weights, at = [CpuWeight(info) for info in self._infos], 0
        for weight in weights:
            weight.place(self._memory[slot, at : at + weight.info.nbytes])
            at += weight.info.nbytes
        return CpuExpert(*weights)


class DoubleExperts(v4.Experts):
    def __init__(self, spec: v4.ExpertsSpec, threads: int):
        self._spec, self._threads = spec, threads

    def run(self, x: Buffer, ids: Buffer, weights: Buffer, lease: Any) -> Buffer:
        assert isinstance(lease, DividedLease)
        rows = len(ids.array)
        out = Buffer(np.zeros((rows, self._spec.hidden), np.float32))
        if rows > LONG:
            begun = False
            counts = np.bincount(ids.array.ravel(), minlength=len(lease.places))
            for first, last in lease.waves(counts):
                numbers = [n for n in range(first, last) if counts[n]]
                self._compute(numbers, lease, x, ids, weights, out, begun, last == len(lease.places))
                begun = begun or bool(numbers)
            return out
        own = np.zeros((rows, self._spec.hidden), np.float32)
        share = CpuBackend(1).share(x.array, ids.array, weights.array, own, self._spec.limit)
        if lease.at_hand is None:
            share.run(lease.turn(ids.array), rows)
        else:
            self._take_turn(share, lease, rows)
        lease.slots.join()
        numbers = np.flatnonzero(lease.places >= 0).tolist()
        self._compute(numbers, lease, x, ids, weights, out, False, True)
        out.array += own
        if rows == 1 and lease.guesses:  # as good a guess as any
            lease.ahead(ids.array[0])
        return out

    def _take_turn(self, share: CpuShare, lease: DividedLease, rows: int) -> None:
        """As a device that has sent its turn, and brings what is to come by itself."""
        assert isinstance(lease.slots, DoubleSlots)
        assert lease.at_hand is not None
        sent, answered, arrivals = np.full(1, 7, np.uint32), np.zeros(3, np.uint32), np.full(1, 5, np.uint32)
        likely = np.arange(2, 2 + share.ids.shape[1])
        meeting = Meeting(sent, answered, arrivals, np.zeros_like(lease.places), likely)
        turns = share.turns(meeting, lease.at_hand)
        turns.take(7, rows, lease, lambda: None)
        assert answered[0] == 7
        assert turns.likely.tolist() == likely.tolist()
        turns.finish()
        assert answered.tolist() == [7, 7, 5]
        for number in np.flatnonzero((meeting.places >= 0) & (meeting.places & COMING > 0)):
            lease.slots.pull(int(meeting.places[number]) & ~COMING, lease.at_hand.sources[number])
        lease.places[:] = np.where(meeting.places < 0, -1, meeting.places & ~COMING)

    def _compute(
        self,
        numbers: list[int],
        lease: DividedLease,
        x: Buffer,
        ids: Buffer,
        weights: Buffer,
        out: Buffer,
        more: bool,
        last: bool,
    ) -> None:
        assert isinstance(lease.slots, DoubleSlots)
        assert isinstance(self._spec.shared, CpuExpert)
        table = CpuExpertTable(len(lease.places))
        for number in numbers:
            table.put(number, lease.slots.expert(int(lease.places[number])))
        native().ps_experts(
            *(table.address, len(table), ids.address, weights.address, ids.array.shape[1], self._spec.limit),
            *(self._spec.shared.address if last else None, self._spec.shared_limit, x.address, len(x.array)),
            *(out.address, more, self._threads),
        )


class DoubleHeld(HeldStack):
    """Experts that a worker holds."""

    def __init__(self, experts: Sequence[Sequence[TensorInfo]]):
        self._weights = [[DoubleWeight(info) for info in expert] for expert in experts]

    def place(self, part: int, number: int, info: TensorInfo, raw: Bytes, scale: Bytes | None = None) -> None:
        assert self._weights[number][part].info is info
        self._weights[number][part].place(raw, scale)

    def terms(self, x: NDArray[np.float32], pairs: NDArray[np.int64], limit: float) -> NDArray[np.float32]:
        table = CpuExpertTable(len(self._weights))
        for number, weights in enumerate(self._weights):
            table.put(number, CpuExpert(*weights))
        inputs, ids = Buffer(x[pairs[:, 0]].copy()), Buffer(pairs[:, 1:].copy())
        out = Buffer(np.zeros((len(pairs), x.shape[1]), np.float32))
        native().ps_expert_terms(
            *(table.address, len(table), ids.address, None, 1, limit, None, 0.0),
            *(inputs.address, len(pairs), out.address, 1),
        )
        return out.array


class DoubleOps(CpuOps):
    def experts(self, spec: v4.ExpertsSpec) -> Any:
        return DoubleExperts(spec, 1)


class Double(CpuBackend, DeviceBackend):
    name = "double"
    description = "a double"

    def __init__(self, rows: int = 64, seconds: ExpertSeconds | None = None, free: int = 1 << 40):
        CpuBackend.__init__(self, 1)
        self._rows, self._seconds, self._free = (
            rows,
            seconds or ExpertSeconds(2e-4, (1e-4, 4e-4, 1.6e-3)),
            free,
        )
        self.most_slots = 1 << 40
        self.pinned: dict[int, int] = {}  # address → bytes
        self.slots: list[DoubleSlots] = []
        self.limits: list[int] = []

    def weight(self, info: TensorInfo) -> CpuWeight:
        return DoubleWeight(info)

    @property
    def beside(self) -> CpuBackend:
        return CpuBackend(1)

    @property
    def free_bytes(self) -> int:
        return self._free

    @property
    def program_bytes(self) -> int:
        return 1 << 20

    def deepseek_v4(self) -> type[CpuOps]:
        return DoubleOps

    def slot_bytes(self, experts: Sequence[Sequence[TensorInfo]], used: int) -> int:
        del used
        return sum(info.nbytes for info in experts[0])

    def slot_step(self, expert: Sequence[TensorInfo]) -> int:
        del expert
        return 1

    def bringing_bytes(self, experts: Sequence[Sequence[TensorInfo]]) -> int:
        return sum(info.nbytes for info in experts[0])

    def expert_slots(self, experts: Sequence[Sequence[TensorInfo]], count: int, used: int) -> DoubleSlots:
        del used
        self.slots.append(DoubleSlots(experts[0], count, self))
        return self.slots[-1]

    def expert_seconds(
        self, slots: ExpertSlots, experts: Sequence[HostExpert], at_hand: bool
    ) -> ExpertSeconds:
        del slots, at_hand
        assert experts
        return self._seconds

    @property
    def reaches_host(self) -> bool:
        return True

    def pin(self, memory: Bytes) -> bool:
        assert memory.ctypes.data not in self.pinned
        self.pinned[memory.ctypes.data] = memory.size
        return True

    def unpin(self, memory: Bytes) -> None:
        del self.pinned[memory.ctypes.data]

    def end_long_steps(self) -> None: ...

    def staging(self, nbytes: int) -> Bytes:
        memory = np.zeros(nbytes + 4096, np.uint8)
        start = -memory.ctypes.data % 4096
        return memory[start : start + nbytes]

    def fence(self) -> Callable[[], None]:
        return lambda: None

    def weight_bytes(self, info: TensorInfo, by_row: bool = False) -> int:
        del by_row
        return info.total_bytes

    def stack_bytes(self, experts: Sequence[Sequence[TensorInfo]], used: int) -> int:
        return len(experts) * self.slot_bytes(experts, used)

    def state_bytes(self, layout: StateLayout, position: int) -> int:
        return layout.live_bytes(position)

    def step_rows(self, *_: object) -> int:
        return self._rows

    def speeds(self) -> DeviceSpeeds:
        return DeviceSpeeds(1e12, 1e10)

    def profile(self, work: Callable[[], object]) -> list[KernelTime]:
        raise NotImplementedError

    def stats(self) -> dict[str, Any]:
        steps = {"steps_repeated": 0, "steps_launched": 0}
        return {"name": "double", "memory_bytes": self._free, "used_bytes": 0, "session_bytes": 0} | steps

    def release(self) -> None: ...

    def limit(self, states: StatePool, nbytes: int) -> None:
        del states
        self.limits.append(nbytes)

    def expert_stack(self, *_: object) -> Any:
        raise NotImplementedError

    def held_stack(self, experts: Sequence[Sequence[TensorInfo]], used: int) -> "DoubleHeld":
        del used
        return DoubleHeld(experts)


def smallest_vram(model: Path, device: Double, **options: Any) -> int:
    """The least that the model runs with."""
    checkpoint = EngineOptions(device="cuda", **options).with_draft(open_checkpoint(model))
    for vram in range(SLACK, SLACK << 2, 1 << 18):
        with suppress(BudgetError):
            chosen = EngineOptions(device="cuda", vram=vram, **options)
            _, plan, _ = plan_engine(checkpoint, chosen, device, 256)
            return plan.smallest
    raise AssertionError("no budget works")


def open_double(monkeypatch: pytest.MonkeyPatch, model: Path, device: Double, **options: Any) -> Engine:
    """An engine on the device."""
    monkeypatch.setattr(loader, "choose_backend", lambda *_: device)
    monkeypatch.setattr(tier_plan, "in_memory", lambda _: False)
    return Engine(model, **{"device": "cuda", "context": 256, "learn": "off", **options})


Logits = NDArray[np.float32]
