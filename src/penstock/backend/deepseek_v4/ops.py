"""What an op does with the rows of a step.

Rows are tokens; every op treats each row by itself, so what else is in a step never enters a row's result.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from penstock.backend.base import (
    Array,
    Backend,
    DeviceWeight,
    DividedLease,
    ExpertLease,
    ExpertTable,
    Logits,
)
from penstock.backend.deepseek_v4.specs import (
    AttentionSpec,
    AttentionState,
    ExpertsSpec,
    FeaturesSpec,
    HeadSpec,
    HyperSpec,
    JoinSpec,
    MarkovSpec,
    RouterSpec,
)
from penstock.backend.state import StatePool, Step
from penstock.weights.checkpoint import Checkpoint

T = TypeVar("T")
Progress = Callable[[float], None]  # told what share of something is done


class Hyper(ABC):
    """streams [rows, n, hidden] → a sublayer's input x [rows, hidden] and the mix that tells how to leave it."""

    @abstractmethod
    def enter(self, streams: Array) -> tuple[Array, Array]: ...

    @abstractmethod
    def between(self, y: Array, streams: Array, mix: Array) -> tuple[Array, Array]:
        """`leave` of the sublayer before this one, with its output and its mix, and then `enter`."""

    @abstractmethod
    def leave(self, y: Array, streams: Array, mix: Array) -> None:
        """The sublayer's output y [rows, hidden] goes into the streams, in place."""


class Attention(ABC):
    @abstractmethod
    def run(self, x: Array, batch: Any) -> Array:
        """x [rows, hidden] → [rows, hidden].  Fills the sequences' state of this block."""

    @abstractmethod
    def fill_window(self, x: Array, batch: Any) -> None:
        """Only fills the window of a sliding layer, as `run` would."""


class Router(ABC):
    @abstractmethod
    def run(self, x: Array, batch: Any) -> tuple[Array, Array]:
        """x [rows, hidden] → expert ids and weights [rows, count]"""


class GuessingRouter(Router):
    """Can be asked before its turn, with the input of the router before it."""

    @abstractmethod
    def guess(self, x: Array, batch: Any) -> NDArray[np.int64]:
        """The ids that `run` would give, on the host and beside its results."""


class Experts(ABC):
    @abstractmethod
    def run(self, x: Array, ids: Array, weights: Array, lease: ExpertLease | DividedLease) -> Array:
        """Σ over each row's experts of weight · expert(x), in ascending order of id, then the shared expert:
        x [rows, hidden] → [rows, hidden].  A divided lease comes to devices with slots alone."""


class TermwiseExperts(Experts):
    """Can stop before they add up."""

    @abstractmethod
    def terms(self, x: Array, ids: Array, weights: Array, lease: ExpertLease) -> Array:
        """The terms of `run`'s sum that the lease has experts for, one by one, for another machine to add up:
        [rows · slots, hidden] and perhaps more."""


class Head(ABC):
    @abstractmethod
    def run(self, streams: Array, rows: NDArray[np.int64], output: Iterable[DeviceWeight]) -> Logits:
        """Logits [len(rows), vocab] of some rows of the streams.  output: the output matrix, some rows at a time."""


class Embedding(ABC):
    @abstractmethod
    def run(self, batch: Any) -> Array:
        """The rows' tokens → [rows, hidden]"""


class Join(ABC):
    @abstractmethod
    def run(self, streams: Array, embedded: Array) -> Array:
        """streams [rows, n, hidden], embedded [rows, hidden] → [rows, n, hidden]"""


class DraftParts(NamedTuple):
    """The ops of a draft block."""

    embedding: Embedding
    join: Join
    attention_hyper: Hyper
    attention: Attention
    experts_hyper: Hyper
    router: Router
    experts: Experts
    head: Head


class Guesses(NamedTuple):
    found: list[tuple[int, float]]  # tokens, and how likely each is
    ids: NDArray[np.int64]  # [guesses, count]: the experts that ran


class Guesser(ABC):
    @abstractmethod
    def run(
        self,
        slot: int,
        first: int,
        streams: Array,
        tokens: Sequence[int],
        most: int,
        least: float,
        table: ExpertTable,
        output: DeviceWeight,
    ) -> Guesses:
        """Pairs of streams [pairs, n, hidden] and the tokens after them go into the block's window from position
        `first` on.  After the last at most `most` tokens are guessed, each from the one before and its streams, until
        all together are less likely than `least`.  What the ops of the block give one by one, in one go; table: all
        of its experts; output: the whole output matrix."""


class Features(ABC):
    @abstractmethod
    def take(self, number: int, streams: Array, batch: Any) -> None:
        """The output of the layer with this number among those that are looked at."""

    @abstractmethod
    def run(self, batch: Any) -> tuple[Array, Any]:
        """Of all that was taken: x [rows, hidden] for `Attention.fill_window`, and the batch of these rows.  Rows
        that no window will keep may be left out."""


class MarkovHead(ABC):
    @abstractmethod
    def run(
        self, streams: Array, batch: Any, most: int, least: float, output: Iterable[DeviceWeight]
    ) -> list[tuple[int, float]]:
        """streams [rows, n, hidden] → tokens, at most `most` and one for each row, with their chances to be right:
        after the batch's first token and each other, until all together are less likely than `least`.  output: as
        for `Head`"""


class Ops(ABC):
    """Makes the ops of a model's blocks, and what they share in a step."""

    @abstractmethod
    def __init__(self, backend: Backend, pool: StatePool): ...

    @staticmethod
    @abstractmethod
    def step_bytes(backend: Backend, checkpoint: Checkpoint, rows: int) -> int:
        """Working memory of a step with so many rows, its results and what it stages included."""

    @abstractmethod
    def begin(self, step: Step, blocks: range) -> Any:
        """The batch that ops of these blocks share in a step: blocks are numbered as their attention was made.  The
        blocks' states are made ready for the step's rows."""

    @abstractmethod
    def repeat(
        self,
        batch: Any,
        work: Callable[[Progress | None], T],
        progress: Progress | None = None,
        blocks: range | None = None,
    ) -> T:
        """Runs `work`, which calls ops with this batch and nothing else that differs from step to step, and tells
        `progress` as it goes.  A device may record what it launches and, for another batch with as many rows and the
        same blocks, launch that again without calling it; then it tells when all is launched.  blocks: those of the
        batch that `work` is about, where it is a part of what a step does"""

    @abstractmethod
    def streams(self, x: Array, count: int) -> Array:
        """x [rows, hidden] → streams [rows, count, hidden], all alike at first"""

    @abstractmethod
    def received(self, streams: NDArray[np.float32], batch: Any) -> Callable[[], Array]:
        """What another stage has computed, on the host: streams [rows, n, hidden] are brought to the device.  The
        result gives them to `repeat`'s work, at the same address in every step with as many rows."""

    @abstractmethod
    def embedding(self, weight: DeviceWeight) -> Embedding: ...

    @abstractmethod
    def hyper(self, spec: HyperSpec) -> Hyper: ...

    @abstractmethod
    def attention(self, spec: AttentionSpec, state: AttentionState) -> Attention: ...

    @abstractmethod
    def router(self, spec: RouterSpec) -> Router: ...

    @abstractmethod
    def experts(self, spec: ExpertsSpec) -> Experts: ...

    @abstractmethod
    def head(self, spec: HeadSpec) -> Head: ...

    # ── for a draft block, which starts from the trunk's last streams ─────────────────────────────────────

    @abstractmethod
    def join(self, spec: JoinSpec) -> Join: ...

    @abstractmethod
    def keep_streams(self, series: int, streams: Array, batch: Any) -> None:
        """The rows' streams become part of a series of the state."""

    @abstractmethod
    def previous_streams(self, series: int, streams: Array, batch: Any) -> Array:
        """For every row that is not a sequence's first, the streams of the position before → [pairs, n, hidden]"""

    @abstractmethod
    def kept_streams(self, series: int, slot: int, first: int) -> Array:
        """The streams of position `first` → [1, n, hidden]"""


class LateDraftOps(Ops):
    """Steps of few rows may leave the draft block's rows to whoever asks for drafts: several are made at once."""

    @abstractmethod
    def begin(self, step: Step, blocks: range, settled: bool = False) -> Any:
        """settled: the sequences have read these tokens already, so that their rows count at once"""

    @abstractmethod
    def kept_streams(self, series: int, slot: int, first: int, count: int = 1) -> Array:
        """The streams of `count` positions from `first` on → [count, n, hidden]"""

    @abstractmethod
    def holds(self, slot: int) -> bool:
        """Whether there is still a sequence in this slot."""

    @abstractmethod
    def last(self, streams: Array) -> Array:
        """Those of the last row → [1, n, hidden]"""

    @abstractmethod
    def guesser(self, parts: DraftParts) -> Guesser | None:
        """For a draft block of these ops, if there is one for weights of their types."""


class DSparkOps(Ops):
    """What a DSpark module takes."""

    @abstractmethod
    def begin(self, step: Step, blocks: range, *, since: int | None = None) -> Any:
        """since: the rows are a block's (`AttentionSpec.block`), whose windows have rows from this position on"""

    @abstractmethod
    def features(self, spec: FeaturesSpec) -> Features: ...

    @abstractmethod
    def markov_head(self, spec: MarkovSpec) -> MarkovHead: ...
