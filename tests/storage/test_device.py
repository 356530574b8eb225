"""Loading into a device's own memory: every byte gets to its place, through a few staging buffers."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from penstock.backend.base import Bytes, ExpertStack, SlicedWeight
from penstock.backend.device import DeviceBackend, DeviceSpeeds, KernelTime
from penstock.backend.state import StateLayout, StatePool
from penstock.errors import BudgetError
from penstock.pocket import pocket_path
from penstock.storage import device
from penstock.storage.device import DeviceDense, DeviceExperts
from penstock.storage.device_plan import plan_for_device
from penstock.storage.reader import Reader
from penstock.weights.checkpoint import Checkpoint
from penstock.weights.opening import open_checkpoint
from penstock.weights.tensor import TensorInfo, Weight


class FakeWeight(SlicedWeight):
    slices = True

    def __init__(self, info: TensorInfo, backend: "FakeDevice"):
        self.info, self._backend = info, backend
        self.rows = np.zeros((info.shape[0], info.kind.row_bytes(info.shape[1])), np.uint8)

    def place(self, raw: Bytes, scale: Bytes | None = None) -> None:
        self.place_rows(self.info, 0, raw, scale)

    def place_rows(self, info: TensorInfo, first: int, raw: Bytes, scale: Bytes | None = None) -> None:
        assert first % 128 == 0
        assert scale is None
        count = info.shape[0]
        self._backend.copy(raw, self.rows[first : first + count].reshape(-1))


class FakeStack(ExpertStack):
    def __init__(self, experts: Sequence[Sequence[TensorInfo]], backend: "FakeDevice"):
        self._backend = backend
        self.parts = [np.zeros((len(experts), infos.nbytes), np.uint8) for infos in experts[0]]

    def place(self, part: int, first: int, info: TensorInfo, raw: Bytes, scale: Bytes | None = None) -> None:
        assert scale is None
        to = self.parts[part]
        count = info.nbytes // to.shape[1]
        self._backend.copy(raw, to[first : first + count].reshape(-1))

    def put(self, number: int, expert: object) -> None:
        raise NotImplementedError

    def remove(self, number: int) -> None:
        raise NotImplementedError


class FakeDevice(DeviceBackend):
    """Copies are made only when somebody waits for them, as late as a device may."""

    name, description, program_bytes, free_bytes = "fake", "a device", 1 << 20, 1 << 40

    def __init__(self) -> None:
        self.waiting: list[tuple[Bytes, Bytes]] = []
        self.staged, self.most_rows = 0, 32

    def step_rows(self, *_: object) -> int:
        return self.most_rows

    def copy(self, raw: Bytes, to: Bytes) -> None:
        self.waiting.append((raw.reshape(-1), to))

    def weight(self, info: TensorInfo) -> FakeWeight:
        return FakeWeight(info, self)

    def held_stack(self, *_: object) -> Any:
        raise NotImplementedError

    def expert_stack(self, experts: Sequence[Sequence[TensorInfo]], used: int) -> FakeStack:
        assert used == 2
        return FakeStack(experts, self)

    def staging(self, nbytes: int) -> Bytes:
        self.staged += nbytes
        memory = np.zeros(nbytes + 4096, np.uint8)
        start = -memory.ctypes.data % 4096
        return memory[start : start + nbytes]

    def fence(self) -> Callable[[], None]:
        mine, self.waiting = self.waiting, []

        def wait() -> None:
            while mine:
                raw, to = mine.pop()
                to[:] = raw

        return wait

    def weight_bytes(self, info: TensorInfo, by_row: bool = False) -> int:
        return 4 * info.shape[0] * info.shape[1] if by_row else info.nbytes

    def stack_bytes(self, experts: Sequence[Sequence[TensorInfo]], used: int) -> int:
        assert used == 2
        return sum(info.nbytes for expert in experts for info in expert)

    def state_bytes(self, layout: StateLayout, position: int) -> int:
        return layout.live_bytes(position)

    def speeds(self) -> DeviceSpeeds:
        return DeviceSpeeds(1.0, 1.0)

    def profile(self, work: Callable[[], object]) -> list[KernelTime]:
        raise NotImplementedError

    def stats(self) -> dict[str, Any]:
        return {}

    def release(self) -> None: ...

    def limit(self, states: StatePool, nbytes: int) -> None: ...

    def _nothing(self, *_: object) -> Any:
        raise NotImplementedError

    beside: Any = None
    slot_bytes: Any = _nothing
    slot_step: Any = _nothing
    bringing_bytes: Any = _nothing
    expert_slots: Any = _nothing
    expert_seconds: Any = _nothing
    reaches_host: Any = _nothing
    pin: Any = _nothing
    unpin: Any = _nothing
    end_long_steps: Any = _nothing
    expert: Any = _nothing
    expert_table: Any = _nothing
    states: Any = _nothing
    host: Any = _nothing
    check: Any = _nothing
    deepseek_v4: Any = _nothing


@pytest.fixture(scope="module")
def pocket() -> Checkpoint:
    return open_checkpoint(pocket_path())


@pytest.mark.parametrize(("buffer", "piece"), [(64 << 20, 32 << 20), (1 << 20, 1 << 18), (1 << 16, 1 << 14)])
def test_every_byte_gets_to_its_place(
    pocket: Checkpoint, monkeypatch: pytest.MonkeyPatch, buffer: int, piece: int
) -> None:
    monkeypatch.setattr(device, "BUFFER", buffer)
    monkeypatch.setattr(device, "SLICE", piece)
    backend, reader = FakeDevice(), Reader()
    experts = DeviceExperts(pocket, backend)
    dense = DeviceDense(pocket, backend, reader, experts)
    names = [
        name for name, info in pocket.index.items() if len(info.shape) == 2 and info.kind.name not in ("I32",)
    ]
    weights = {name: dense.weight(name) for name in names}
    told: list[tuple[int, int]] = []
    dense.load(lambda done, total: told.append((done, total)))
    reader.close()
    for weight in weights.values():
        assert isinstance(weight, FakeWeight)
        np.testing.assert_array_equal(weight.rows, Weight(weight.info).raw)
    for block in ("blk.0", "blk.7", "mtp.0"):
        (stack,) = experts.acquire(block, None).in_order()
        assert isinstance(stack, FakeStack)
        for number, part in enumerate(("gate", "up", "down")):
            for expert in (0, 5, 15):
                raw = Weight(pocket.expert(block, expert, part)).raw.reshape(-1)
                np.testing.assert_array_equal(stack.parts[number][expert], raw)
    assert told[-1][0] == told[-1][1]
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    largest = max(info.nbytes for info in pocket.index.values())
    assert backend.staged <= device.BUFFERS * (buffer + largest + (1 << 20))


def plan(pocket: Checkpoint, rows: int = 32, **options: Any) -> tuple[Any, int]:
    chosen: dict[str, Any] = {"budget": None, "chunk": None, "context": None, "kv_dtype": "f16", **options}
    backend = FakeDevice()
    backend.most_rows = rows
    return plan_for_device(pocket, backend, lambda n: 1000 * n, lambda rows: 10_000 * rows, **chosen)


def test_steps_are_as_long_as_memory_allows(pocket: Checkpoint) -> None:
    whole, _ = plan(pocket, 8192, context=2048)
    assert whole.chunk == 8192
    for rows in (4096, 512, 32):
        budget = whole.total - 10_000 * (8192 - rows)
        found, _ = plan(pocket, 8192, context=2048, budget=budget)
        assert found.chunk == rows
        assert found.smallest <= budget
    assert plan(pocket, 8192, context=2048, chunk=100)[0].chunk == 100


def test_a_plan_counts_everything(pocket: Checkpoint) -> None:
    found, context = plan(pocket)
    assert found.mode == "vram"
    assert context == pocket.config.context_length
    assert found.chunk == 32
    assert found.state == 1000 * context
    assert found.experts_held == found.experts_total > 0
    assert found.total < 1 << 40
    embedding = pocket.index["token_embd.weight"]  # of which kernels read single rows: here as floats
    others = [
        info.nbytes
        for name, info in pocket.index.items()
        if len(info.shape) == 2 and not name.endswith("tid2eid.weight") and info is not embedding
    ]
    tables = sum(
        4 * info.shape[0] * info.shape[1]
        for name, info in pocket.index.items()
        if name.endswith("tid2eid.weight")
    )
    assert found.dense == sum(others) + tables + 4 * embedding.shape[0] * embedding.shape[1]


def test_a_budget_shortens_the_context_before_it_is_refused(pocket: Checkpoint) -> None:
    whole, context = plan(pocket)
    less, shorter = plan(pocket, budget=whole.total - 1000)
    assert shorter == context // 2
    assert less.total <= whole.total - 1000
    with pytest.raises(BudgetError, match="this model needs") as refused:
        plan(pocket, budget=less.smallest - 1)
    assert "for a context of 4,096 tokens" in str(refused.value)
    smallest, _ = plan(pocket, budget=less.smallest)
    assert smallest.total == less.smallest


def test_a_budget_that_is_not_there_is_refused(pocket: Checkpoint) -> None:
    with pytest.raises(BudgetError, match="of the GPU's memory are free"):
        plan(pocket, budget=1 << 41)
