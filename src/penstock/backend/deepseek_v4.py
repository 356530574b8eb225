"""The ops that DeepSeek-V4 is made of, as the model calls them.  `tests/spec` says what each of them computes.

A spec holds the weights of one op and what stays the same from step to step.  A backend makes an op of it once, when
the model is built.  Rows are tokens; every op treats each row by itself, so what else is in a step never enters a
row's result.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from penstock.backend.base import (
    Array,
    Backend,
    DeviceExpert,
    DeviceWeight,
    ExpertLease,
    Logits,
    Vector,
)
from penstock.backend.state import StatePool, Step
from penstock.weights.checkpoint import Checkpoint

T = TypeVar("T")
Progress = Callable[[float], None]  # told what share of something is done

# ── specs ─────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class HyperSpec:
    """One hyper-connection, and the norm of the sublayer behind it."""

    fn: DeviceWeight  # [(2 + streams) · streams, streams · hidden]
    base: Vector
    scale: Vector  # [3]
    norm: Vector  # [hidden]
    streams: int
    iterations: int
    eps: float
    rms_eps: float


@dataclass(frozen=True, slots=True)
class CompressorSpec:
    """Every `ratio` tokens become one row.  width = dim, or 2 · dim where windows overlap: then the first half of the
    channels speaks for the next window and the second half for the current one."""

    values: DeviceWeight  # [width, hidden]
    scores: DeviceWeight
    ape: Vector  # [ratio, width]
    norm: Vector  # [dim]
    frequencies: Vector  # [rope pairs]: angle per position

    @property
    def ratio(self) -> int:
        return int(self.ape.shape[0])

    @property
    def overlap(self) -> bool:
        return bool(self.ape.shape[1] > self.norm.shape[0])


@dataclass(frozen=True, slots=True)
class IndexerSpec:
    """The lightning indexer: a row scores Σ over heads of gate · max(0, query · row); the best `topk` are seen."""

    q_b: DeviceWeight  # [heads · dim, q_rank]
    gates: DeviceWeight  # [heads, hidden]
    compressor: CompressorSpec
    heads: int
    dim: int
    topk: int


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """A whole attention sublayer, from its normed input to its output: one key/value row per token serves all heads;
    a token sees the last `window` rows and, beyond them, compressed rows."""

    q_a: DeviceWeight
    q_norm: Vector  # [q_rank]
    q_b: DeviceWeight  # [heads · dim, q_rank]
    kv: DeviceWeight  # [dim, hidden]
    kv_norm: Vector  # [dim]
    sinks: Vector  # [heads]
    out_a: DeviceWeight  # in groups of heads
    out_b: DeviceWeight
    compressor: CompressorSpec | None
    indexer: IndexerSpec | None  # with a compressor
    heads: int
    dim: int
    window: int
    groups: int
    frequencies: Vector  # [rope pairs]: angle per position
    eps: float
    # Not 0: up to so many rows of one sequence see the window before them and each other, whichever comes first, and
    # leave the window as it is; `fill_window` alone fills it.
    block: int = 0


@dataclass(frozen=True, slots=True)
class AttentionState:
    """The numbers of a block's series in the layout of sequences' states."""

    window: int
    frontier: int | None = None  # [value | score] of recent tokens, before a compressor pools them
    rows: int | None = None  # compressed
    index_frontier: int | None = None
    index_rows: int | None = None


@dataclass(frozen=True, slots=True)
class RouterSpec:
    """Which experts a token goes to: by score, or, where there is a table, by token id."""

    gate: DeviceWeight  # [experts, hidden]
    bias: Vector | None  # [experts]: added for the choice, not for the weight
    table: NDArray[np.int64] | None  # [vocab, count]
    count: int
    normalize: bool
    scale: float


@dataclass(frozen=True, slots=True)
class ExpertsSpec:
    """The experts of a layer: down(silu(min(gate, limit)) · clamp(up, ±limit)).  The shared one sees every row."""

    shared: DeviceExpert
    limit: float
    shared_limit: float
    hidden: int


@dataclass(frozen=True, slots=True)
class HeadSpec:
    """Folds the streams into one vector, normed: what the output matrix reads."""

    fn: DeviceWeight  # [streams, streams · hidden]
    base: Vector  # [streams]
    scale: Vector  # [1]
    norm: Vector  # [hidden]
    streams: int
    vocab: int
    eps: float
    rms_eps: float


@dataclass(frozen=True, slots=True)
class JoinSpec:
    """The way into a draft block: trunk streams and embedded next tokens, each normed and projected."""

    projections: tuple[
        DeviceWeight, ...
    ]  # of both side by side (embedding first), or of the embedding, of the streams
    embedding_norm: Vector  # [hidden]
    stream_norm: Vector
    streams: int
    hidden: int
    eps: float


@dataclass(frozen=True, slots=True)
class FeaturesSpec:
    """What a DSpark module sees of the trunk: outputs of some layers, each the mean over its streams, side by side
    and projected, then normed."""

    projection: DeviceWeight  # [hidden, layers · hidden]
    norm: Vector  # [hidden]
    eps: float


@dataclass(frozen=True, slots=True)
class MarkovSpec:
    """How a DSpark module chooses tokens one after another: each adds to the logits of the next, and together with
    the folded streams tells how likely that is right."""

    previous: DeviceWeight  # [vocab, rank]
    following: DeviceWeight  # [vocab, rank]
    confidence: Vector  # [hidden + rank]
    fold: HeadSpec  # of the streams; its norm is not used


# ── ops ───────────────────────────────────────────────────────────────────────────────────────────────────────


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

    @abstractmethod
    def guess(self, x: Array, batch: Any) -> NDArray[np.int64]:
        """The ids that `run` would give, on the host and beside its results."""


class Experts(ABC):
    @abstractmethod
    def run(self, x: Array, ids: Array, weights: Array, lease: ExpertLease) -> Array:
        """Σ over each row's experts of weight · expert(x), in ascending order of id, then the shared expert:
        x [rows, hidden] → [rows, hidden]"""

    def terms(self, x: Array, ids: Array, weights: Array, lease: ExpertLease) -> Array:
        """The terms of that sum that the lease has experts for, one by one, for another machine to add up:
        [rows · slots, hidden] and perhaps more.  Only where a device can do that."""
        raise NotImplementedError


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


class Features(ABC):
    @abstractmethod
    def take(self, number: int, streams: Array) -> None:
        """The output of the layer with this number among those that are looked at."""

    @abstractmethod
    def run(self, rows: int) -> Array:
        """Of all that was taken: x [rows, hidden]"""


class MarkovHead(ABC):
    @abstractmethod
    def run(self, streams: Array, logits: Logits, token: int, least: float) -> list[tuple[int, float]]:
        """streams [rows, n, hidden], logits [rows, vocab], which are changed → the token of each row with its chance
        to be right, after `token` and each other, until all together are less likely than `least`"""


class Ops(ABC):
    """Makes the ops of a model's blocks, and what they share in a step.

    late  whether steps of few rows may leave the draft block's rows to whoever asks for drafts
    """

    late: bool = False

    @abstractmethod
    def __init__(self, backend: Backend, pool: StatePool): ...

    @staticmethod
    @abstractmethod
    def step_bytes(backend: Backend, checkpoint: Checkpoint, rows: int) -> int:
        """Working memory of a step with so many rows, its results and what it stages included."""

    @abstractmethod
    def begin(self, step: Step, blocks: range, settled: bool = False, since: int = 0) -> Any:
        """The batch that ops of these blocks share in a step: blocks are numbered as their attention was made.  The
        blocks' states are made ready for the step's rows.  settled: the sequences have read these tokens already,
        so that their rows count at once.  since: the position from which on windows of `AttentionSpec.block` have
        rows"""

    @abstractmethod
    def repeat(self, batch: Any, work: Callable[[Progress | None], T], progress: Progress | None = None) -> T:
        """Runs `work`, which calls ops with this batch and nothing else that differs from step to step, and tells
        `progress` as it goes.  A device may record what it launches and, for another batch with as many rows and the
        same blocks, launch that again without calling it; then it tells when all is launched."""

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

    def features(self, spec: FeaturesSpec) -> Features:
        """Where DSpark modules can be run."""
        raise NotImplementedError

    def markov_head(self, spec: MarkovSpec) -> MarkovHead:
        """Likewise."""
        raise NotImplementedError

    @abstractmethod
    def keep_streams(self, series: int, streams: Array, batch: Any) -> None:
        """The rows' streams become part of a series of the state."""

    @abstractmethod
    def previous_streams(self, series: int, streams: Array, batch: Any) -> Array:
        """For every row that is not a sequence's first, the streams of the position before → [pairs, n, hidden]"""

    @abstractmethod
    def kept_streams(self, series: int, slot: int, first: int, count: int = 1) -> Array:
        """The streams of `count` positions from `first` on → [count, n, hidden]"""

    def holds(self, slot: int) -> bool:
        """Whether there is still a sequence in this slot.  Where draft blocks may come `late`."""
        raise NotImplementedError

    def last(self, streams: Array) -> Array:
        """Those of the last row → [1, n, hidden].  Likewise."""
        raise NotImplementedError
