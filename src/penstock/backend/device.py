"""What a device with memory of its own provides besides, and the host's processors beside it."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.backend.base import (
    Array,
    AtHand,
    Backend,
    Bytes,
    DividedLease,
    ExpertSlots,
    ExpertStack,
    ExpertTable,
    HostExpert,
    OpenTable,
    Vector,
)
from penstock.backend.state import StateLayout, StatePool
from penstock.weights.config import ModelConfig
from penstock.weights.tensor import TensorInfo

HOST_ROWS: Final = (1, 4, 16)
GLANCE: Final = 50_000  # microseconds of waiting for a device, after which it is asked whether it is well


class ExpertSeconds(NamedTuple):
    """Measured, of one expert: to be copied to the device; to be computed by the host, by the rows that need it (as
    many as `HOST_ROWS` says); and of a call that computes some, besides them."""

    link: float
    host: tuple[float, ...]
    call: float = 0.0


class Meeting(NamedTuple):
    """Host memory in which a device and the host take turns (`native/tiers.h`)."""

    sent: NDArray[np.uint32]  # [1]
    answered: NDArray[np.uint32]  # [2 + lanes]
    arrivals: NDArray[np.uint32]  # [lanes]
    places: NDArray[np.int32]  # [experts]
    likely: NDArray[np.int64]  # [experts of a row]: what the first row may want of the next layer


class HostTurns(ABC):
    """The host's turns in a layer."""

    likely: NDArray[np.int64]  # of the latest turn: what the next layer may want

    @abstractmethod
    def take(self, turn: int, live: int, lease: DividedLease, check: Callable[[], object]) -> float:
        """Waits for this turn of the device's and answers it: `live` rows are not padding.  check: asked now and then
        whether the device is well, and raises what is not.  Returns the seconds of waiting.  What the host computes
        may still be under way."""

    @abstractmethod
    def finish(self) -> None:
        """Until it is not."""


class HostShare(ABC):
    """The host's share of a layer's experts, between arrays that stay where they are."""

    @abstractmethod
    def run(self, tables: Iterable[ExpertTable], rows: int) -> bool:
        """Σ weight · expert(x) of the first rows over the experts of the tables, in ascending order of id, whatever
        comes when.  False: there was nothing to compute, and the output is as it was."""

    @abstractmethod
    def turns(self, meeting: Meeting, layer: AtHand) -> HostTurns:
        """Those of a layer whose experts are all at hand."""


# Where a weight's products add up Σ input² of every column: [parts, columns + 1], the last of a part being how many
# inputs there were; None where nobody wants to know.  A part is a group of rows that has inputs of its own.
InputSquares = NDArray[np.float32]
Observer = Callable[[TensorInfo], InputSquares | None]


class HostBackend(Backend):
    """The host's processors: alone, or beside a device that has some of the experts."""

    @abstractmethod
    def observe_inputs(self, observer: Observer) -> None:
        """Asks `observer` where, for every weight that is made from now on."""

    @abstractmethod
    def expert_table(self, experts: int) -> OpenTable:
        """An empty table for a layer with so many experts."""

    @abstractmethod
    def device(self, array: NDArray[Any]) -> Array:
        """The reverse of `host`, for routed experts that other machines compute."""

    @abstractmethod
    def share(
        self, x: Vector, ids: NDArray[np.int64], weights: Vector, out: Vector, limit: float
    ) -> HostShare:
        """x, out [rows, hidden], ids, weights [rows, count], all contiguous."""

    @abstractmethod
    def expert_work(
        self, experts: Sequence[HostExpert], rows: int, together: int
    ) -> list[Callable[[], None]]:
        """What computes so many of the experts at a time, all for so many rows: to be measured."""


class HeldStack(ABC):
    """Some experts of one layer in a device's memory, whose terms are asked for one by one."""

    @abstractmethod
    def place(self, part: int, number: int, info: TensorInfo, raw: Bytes, scale: Bytes | None = None) -> None:
        """Gate (0), up (1) or down (2) of one of them."""

    @abstractmethod
    def terms(self, x: Vector, pairs: NDArray[np.int64], limit: float) -> Vector:
        """expert(x), without a routing weight: x [rows, hidden], pairs [n, 2] of a row and an expert's number here
        → [n, hidden]"""


class DeviceSpeeds(NamedTuple):
    """Bytes per second, measured."""

    memory: float  # reading the device's own
    from_host: float  # copying to it


class KernelTime(NamedTuple):
    """What a device did under one name."""

    name: str
    launches: int
    seconds: float


class DeviceBackend(Backend):
    """A device with memory of its own, to which all weights are copied."""

    @property
    @abstractmethod
    def description(self) -> str:
        """The device in a few words."""

    @abstractmethod
    def speeds(self) -> DeviceSpeeds: ...

    @abstractmethod
    def profile(self, work: Callable[[], object]) -> list[KernelTime]:
        """The device's time for `work` by kernel, most first; together all the time from its first to its last."""

    @abstractmethod
    def stats(self) -> dict[str, Any]:
        """The device's name, its memory as its driver counts it, and how steps were launched."""

    @abstractmethod
    def expert_stack(self, experts: Sequence[Sequence[TensorInfo]], used: int) -> ExpertStack:
        """Memory for a layer's experts, each (gate, up, down), of which a token uses so many."""

    @abstractmethod
    def held_stack(self, experts: Sequence[Sequence[TensorInfo]], used: int) -> HeldStack:
        """Memory for some of a layer's experts.  Raises OptionError where the device has no products for them."""

    # ── where not all experts fit ─────────────────────────────────────────────────────────────────────────

    @property
    @abstractmethod
    def beside(self) -> HostBackend:
        """The host's processors, which compute what the device does not."""

    @abstractmethod
    def end_long_steps(self) -> None:
        """Steps of many rows are over: what they worked with goes back to the system."""

    @abstractmethod
    def slot_bytes(self, experts: Sequence[Sequence[TensorInfo]], used: int) -> int | None:
        """Device memory of one expert in a slot; None where such experts cannot come and go."""

    @abstractmethod
    def slot_step(self, expert: Sequence[TensorInfo]) -> int:
        """Slots whose memory comes and goes together."""

    @abstractmethod
    def bringing_bytes(self, experts: Sequence[Sequence[TensorInfo]]) -> int:
        """Device memory that copies pass through on their way to slots."""

    @abstractmethod
    def expert_slots(self, experts: Sequence[Sequence[TensorInfo]], count: int, used: int) -> ExpertSlots: ...

    @abstractmethod
    def expert_seconds(
        self, slots: ExpertSlots, experts: Sequence[HostExpert], at_hand: bool
    ) -> ExpertSeconds:
        """What one of these takes, the host's own; they are brought to the first slots, which nobody uses yet.
        at_hand: as where a layer's experts are all at hand"""

    @property
    @abstractmethod
    def reaches_host(self) -> bool:
        """Whether the device finds what is pinned by itself, where the host does."""

    @abstractmethod
    def pin(self, memory: Bytes) -> bool:
        """Makes copies from this memory as fast as they can be, until `unpin`.  False: it cannot be done."""

    @abstractmethod
    def unpin(self, memory: Bytes) -> None: ...

    # ── loading ───────────────────────────────────────────────────────────────────────────────────────────

    @abstractmethod
    def staging(self, nbytes: int) -> Bytes:
        """Host memory that copies to the device start from."""

    @abstractmethod
    def fence(self) -> Callable[[], None]:
        """What waits until all copies so far have been made."""

    @abstractmethod
    def release(self) -> None:
        """Gives device memory that nobody uses any more back to the system."""

    @abstractmethod
    def limit(self, states: StatePool, nbytes: int) -> None:
        """Sequences may take so much of the device's memory together."""

    # ── before anything is loaded ─────────────────────────────────────────────────────────────────────────

    @abstractmethod
    def step_rows(self, config: ModelConfig, kv_dtype: str, experts: Sequence[Sequence[TensorInfo]]) -> int:
        """Most rows of a step of this model, with these experts in a layer."""

    @property
    @abstractmethod
    def free_bytes(self) -> int:
        """Of the device's memory, what this process has or could have."""

    @abstractmethod
    def weight_bytes(self, info: TensorInfo, by_row: bool = False) -> int:
        """Device memory of a matrix outside of the routed experts.  by_row: of which kernels read single rows"""

    @abstractmethod
    def stack_bytes(self, experts: Sequence[Sequence[TensorInfo]], used: int) -> int:
        """Device memory of a layer's experts."""

    @abstractmethod
    def state_bytes(self, layout: StateLayout, position: int) -> int:
        """Device memory of a sequence that has read so many tokens."""
