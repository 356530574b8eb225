"""What an op is made of: its weights, and what stays the same from step to step."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from penstock.backend.base import DeviceExpert, DeviceWeight, Vector


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

    # One of both side by side (embedding first), or two: of the embedding, of the streams.
    projections: tuple[DeviceWeight, ...]
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
    the streams, folded as for the head, tells how likely that is right."""

    previous: DeviceWeight  # [vocab, rank]
    following: DeviceWeight  # [vocab, rank]
    confidence: Vector  # [hidden + rank]
    head: HeadSpec
