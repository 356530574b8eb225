"""What a device provides, for any architecture.

A backend owns everything that is its device's own: weights in the form that its kernels want, the memory of
sequences, working memory, the ops that a model is made of, and what sampling asks of logits.  It also says how many
bytes each of these takes.  The model describes; the backend computes.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from penstock.backend.state import StateLayout, StatePool
from penstock.weights.tensor import TensorInfo

if TYPE_CHECKING:
    from penstock.backend import deepseek_v4

# An array on the device.  Only the backend that made it looks inside; it is good until the same op runs again.
Array = Any
Bytes = NDArray[np.uint8]
Vector = NDArray[np.float32]
Logits = NDArray[np.float32]


class DeviceWeight(ABC):
    """A matrix [out, in] in the form that the device's products want."""

    info: TensorInfo

    @abstractmethod
    def place(self, raw: Bytes, scale: Bytes | None = None) -> None:
        """The weight's bytes, in its stored type, are here in host memory now, and those of its scales there.  They
        stay until the next call."""


class SlicedWeight(DeviceWeight):
    """A weight of a device with memory of its own: it can come some rows at a time."""

    @property
    @abstractmethod
    def slices(self) -> bool:
        """Whether this one can, as ops want it."""

    @abstractmethod
    def place_rows(self, info: TensorInfo, first: int, raw: Bytes, scale: Bytes | None = None) -> None:
        """Rows [first, …) of it, described by `info`; first: a multiple of 128."""


class DeviceExpert:
    """One expert's three matrices, ready to be used."""


class HostExpert(DeviceExpert):
    """One that lies in the host's memory, where a device can copy it from."""

    @property
    @abstractmethod
    def parts(self) -> Sequence[int]:
        """Where gate, up and down lie now, in their stored type; then their scales, if these lie apart."""


class ExpertTable:
    """Where experts of one layer are, by number: what an op looks routed ids up in.  Behind the last one is a place
    that is always empty: the number of experts stands for one that somebody else computes."""


class OpenTable(ExpertTable, ABC):
    """A table whose experts come and go one by one."""

    @abstractmethod
    def put(self, number: int, expert: DeviceExpert) -> None: ...

    @abstractmethod
    def remove(self, number: int) -> None: ...


class ExpertStack(ExpertTable, ABC):
    """All experts of one layer, in memory of the device's own."""

    @abstractmethod
    def place(self, part: int, first: int, info: TensorInfo, raw: Bytes, scale: Bytes | None = None) -> None:
        """Gate (0), up (1) or down (2) of expert `first` and those behind it: `info` describes all of their rows as
        one matrix, whose bytes are here in host memory until the next fence."""


class ExpertSlots(ABC):
    """Memory of a device for `count` experts of one kind, whichever they are, and the link that brings them there.

    What is brought is copied while the device computes.  `join` and `mark` say what waits for what.
    """

    count: int

    @abstractmethod
    def bring(self, slot: int, expert: HostExpert) -> None:
        """Begins to copy an expert of the host's to a slot.  Its memory stays as it is until `wait` has returned, or
        whatever the device computed after `join` is there."""

    def bring_all(self, slots: Sequence[int], experts: Sequence[HostExpert]) -> None:
        """The same for several, in this order."""
        for slot, expert in zip(slots, experts, strict=True):
            self.bring(slot, expert)

    @abstractmethod
    def join(self) -> None:
        """What the device is asked to compute from now on finds all that was brought so far."""

    @abstractmethod
    def mark(self) -> Callable[[], None]:
        """What, when it is called, makes later copies wait for all that the device has been asked to compute until
        `mark`: nobody uses the slots of that any more."""

    @abstractmethod
    def wait(self) -> None:
        """Returns when all that was brought has arrived."""

    @abstractmethod
    def resize(self, count: int) -> int:
        """There are to be so many slots, the first ones: memory of others goes back to the system, and comes from it.
        Nobody uses what goes.  Returns how many there are: memory comes and goes in steps, and may be short."""


class Wave(NamedTuple):
    """Experts [first, last) of a layer, as far as somebody needs them, in a device's slots."""

    first: int
    last: int


class AtHand(NamedTuple):
    """A layer all of whose experts lie in the host's memory, as native code sees it (`native/tiers.h`)."""

    placement: int  # address of what says who has which slot
    block: int  # its number there
    table: ExpertTable  # all experts, for the host
    sources: NDArray[np.uint64]  # [experts, parts]: where a device finds them


class DividedLease(ABC):
    """A layer's experts where a device computes some and the host beside it others, at the same time.

    Who computes what is decided when the host has seen which experts are needed, so a lease is good for many steps.
    Where all experts are at hand native code decides, between `begin` and `taken`; else `turn` does.
    """

    slots: ExpertSlots
    places: NDArray[np.int32]  # [experts]: slots of those that the device computes now; −1: none
    guesses: bool  # there is a next layer, and it is of use to say what it is likely to need

    @property
    @abstractmethod
    def at_hand(self) -> AtHand | None:
        """None: experts may have to come from disk."""

    @abstractmethod
    def begin(self, rows: int) -> None:
        """A turn is about to be decided."""

    @abstractmethod
    def make_room(self) -> None:
        """It has been, and needs more slots than are free."""

    @abstractmethod
    def taken(self, ids: NDArray[np.int64], computing: float) -> None:
        """It has been, for these; the host has computed for so many seconds."""

    @abstractmethod
    def turn(self, ids: NDArray[np.int64]) -> Iterator[ExpertTable]:
        """Where some experts may be on disk.  Decides for a step of few rows, ids [rows, count], and begins to bring
        what the device is to have.  Gives tables of what the host is to compute, as it comes; each is good until the
        next is asked for.  In the end `places` is right, and the device can be asked to compute the rest once it has
        what was brought."""

    @abstractmethod
    def give_up(self) -> None:
        """The device goes on with no answer: what the latest turn of any layer was to bring may not have come."""

    @abstractmethod
    def waited(self, idle: float, host: float, link: float) -> None:
        """Seconds that the host waited for this turn, and that the device waited in the one before: for the host,
        then for what was brought."""

    @abstractmethod
    def ahead(self, ids: NDArray[np.int64]) -> None:
        """The layer behind this one is likely to need these, the first ones most.  Called between a turn's answer and
        the next turn."""

    @abstractmethod
    def waves(self, rows: NDArray[np.int64]) -> Iterator[Wave]:
        """For many rows: all experts that any row needs pass through the device.  rows [experts]: how many need each.
        With each wave `places` is right for its experts, and the device is asked to compute them before the next is
        asked for."""


class ExpertLease(Protocol):
    """Experts that a layer asked for, held until it is done with them.

    They are handed over in tables, each good until the next is asked for.  Where everything is at hand that is one
    table with all experts of the layer, whoever was asked for; elsewhere each table has just those that have come
    since the one before.
    """

    resident: bool  # one table has all of them
    requested: bool  # all that was missing is on its way
    last: bool  # no table follows
    elsewhere: "Elsewhere | None"  # those of the layer's experts that the lease has not

    def as_they_come(self) -> Iterator[ExpertTable]: ...

    def in_order(self) -> Iterator[ExpertTable]:
        """In ascending order of number."""
        ...


class Elsewhere(Protocol):
    """Experts of a layer that other machines compute meanwhile."""

    def begin(self, x: Array, ids: Array, weights: Array, terms: Array) -> Array:
        """They begin, and `terms` [rows · slots, hidden] will have theirs once `finish` has ended.  Gives the ids
        [rows, slots] that are left to do here; in place of the others stands the number of experts."""
        ...

    def finish(self) -> Iterator[tuple[Array, ExpertLease]]:
        """Waits for them.  What they did not do after all is to be done here: ids, and a lease of those."""
        ...


class Edits(NamedTuple):
    """What is done to logits of some tokens before anything is chosen, in this order.  Each [tokens]"""

    ids: NDArray[np.int64]
    repeated: NDArray[np.bool_]  # divided by the repetition penalty, or multiplied where they are negative
    subtract: NDArray[np.float64]
    add: NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Choice:
    """How one token is to be chosen; see `Sampling.draw`."""

    temperature: float  # 0: the best, ties to the lower id
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    chance: float = 0.0
    repetition_penalty: float = 1.0
    edits: Edits | None = None
    mask: NDArray[np.uint32] | None = None  # bits of the tokens that are allowed, lowest first


class Chosen(NamedTuple):
    token: int  # −1 if a logit is NaN
    logprob: float  # before edits and mask
    highest: float  # logit, before them
    best: float  # after them


class Choosing(ABC):
    """A choice under way on a device."""

    @abstractmethod
    def result(self) -> Chosen:
        """Waits for it.  Says the same, or raises the same, as often as it is asked."""


class Sampling(ABC):
    """What choosing a token asks of a row of logits [vocab]."""

    def start(self, logits: Logits, choice: Choice) -> Choosing | None:
        """Begins to choose, where logits are not on the host.  Several that have been started are made together.
        None: the questions below are to be asked."""
        start: Callable[[Choice], Choosing] | None = getattr(logits, "start", None)
        return None if start is None else start(choice)

    def tokens(self, choices: Sequence[Choosing]) -> Array | None:
        """Where the tokens that are being chosen will be, on the device, for a step that begins before anybody knows
        them (`Step.source`).  None: they come to the host alone."""
        del choices
        return None

    def tops(self, rows: Sequence[Logits]) -> list[tuple[int, float, float]]:
        """Of each row what `top` and `log_sum` say; where the former says −1, nothing else counts."""
        found = [self.top(row) for row in rows]
        return [
            (token, highest, self.log_sum(row, highest) if token >= 0 else 0.0)
            for row, (token, highest) in zip(rows, found, strict=True)
        ]

    @abstractmethod
    def top(self, logits: Logits) -> tuple[int, float]:
        """The token with the highest logit, ties to the lower id, and that logit; (−1, …) if one is NaN."""

    @abstractmethod
    def log_sum(self, logits: Logits, highest: float) -> float:
        """ln Σ e^logit"""

    @abstractmethod
    def draw(
        self,
        logits: Logits,
        highest: float,
        temperature: float,
        top_k: int,
        top_p: float,
        min_p: float,
        chance: float,
    ) -> int:
        """One token by weight e^(logit / temperature), among those that the filters leave.

        0 ≤ chance < 1 says which: tokens stand in order of id, each as wide as its weight.  The filters, in this
        order: the best top_k (0: all), then as few of the best as make up top_p, then those with min_p of the best
        one's weight."""

    @abstractmethod
    def best(self, logits: Logits, count: int) -> NDArray[np.int64]:
        """The `count` tokens with the highest logits, best first, ties by rising id."""


class Backend(ABC):
    """One device."""

    name: str
    sampling: Sampling

    @abstractmethod
    def weight(self, info: TensorInfo) -> DeviceWeight:
        """A weight whose bytes are to be placed."""

    @abstractmethod
    def expert(self, gate: DeviceWeight, up: DeviceWeight, down: DeviceWeight) -> DeviceExpert:
        """gate and up [width, hidden], down [hidden, width]"""

    @abstractmethod
    def states(self, layout: StateLayout) -> StatePool:
        """Memory for sequences."""

    @abstractmethod
    def host(self, array: Array) -> NDArray[Any]:
        """What an array holds, on the host.  It may be the very memory, which the next step changes, and may have
        rows behind those of the step."""

    @abstractmethod
    def check(self) -> None:
        """Raises what went wrong in kernels since the last call."""

    @property
    @abstractmethod
    def program_bytes(self) -> int:
        """What the process takes before weights, sequences and steps."""

    @abstractmethod
    def deepseek_v4(self) -> "type[deepseek_v4.Ops]":
        """The ops of that architecture; called with this backend and the sequences' memory."""
