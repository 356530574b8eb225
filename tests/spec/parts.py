"""What the larger ops work on: the weights of one step of a layer together, the rows of one sequence in a batch, and
the memory they read and fill.

A part is made once per layer.  `prepared` is whatever form kernels want it in, made by them and kept here.
`simulate` asks for the low-precision round trips of DeepSeek's own inference code.
"""

from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from penstock.weights.tensor import Weight


class Rotation(NamedTuple):
    """cos and sin of every row's angles.  [rows, rope_dim / 2] each"""

    cos: Tensor
    sin: Tensor


class Span(Protocol):
    """One sequence's share of a batch: rows [start, stop), positions from `position` on."""

    @property
    def start(self) -> int: ...

    @property
    def stop(self) -> int: ...

    @property
    def position(self) -> int: ...


class RecentRows(Protocol):
    """The last rows of a series, addressed by absolute position: enough for the next step and for rewinding.

    `storage` is a ring, position p at p % capacity.  Rows of a step under way are where `open` said."""

    storage: Tensor  # [capacity, width]
    prepared: Any

    @property
    def fresh(self) -> Tensor | None:
        """Rows of the step under way, if they are not in the ring."""
        ...

    def open(self, position: int, count: int) -> Tensor | None:
        """Makes room for rows of positions [position, position + count).  They go to the result [count, width],
        or, where that is None, to their places in the ring."""
        ...

    def write(self, position: int, rows: Tensor) -> None:
        """`open`, and fills it.  Of a run that is longer than the ring only the last rows are kept."""
        ...

    def read(self, start: int, stop: int) -> Tensor:
        """A copy of the rows of positions [start, stop), those of the step under way included."""
        ...

    def trim(self) -> None:
        """What is in no one's reach any more after this step may go."""
        ...


class AllRows(Protocol):
    """Every row of a series since the beginning."""

    storage: Tensor  # [limit, width]
    prepared: Any

    def write(self, first: int, rows: Tensor) -> None: ...

    def view(self, count: int) -> Tensor: ...


class CompressorRows(Protocol):
    """What a sequence remembers for a compressor."""

    @property
    def frontier(self) -> RecentRows:
        """Projected values and scores of recent tokens, float32 [value | score]."""
        ...

    @property
    def rows(self) -> AllRows:
        """Finished compressed rows: row w covers positions [w · ratio, (w + 1) · ratio)."""
        ...


class LayerRows(Protocol):
    """What a sequence remembers for a layer."""

    prepared: Any

    @property
    def window(self) -> RecentRows:
        """Raw shared key/value rows."""
        ...

    @property
    def compressor(self) -> CompressorRows | None: ...

    @property
    def indexer(self) -> CompressorRows | None: ...


@dataclass(eq=False, slots=True)
class Hyper:
    """One hyper-connection, and the norm of the sublayer behind it."""

    fn: Weight  # [(2 + streams) · streams, streams · hidden]
    base: Tensor
    scale: Tensor  # [3]
    norm: Tensor  # [hidden]
    streams: int
    iterations: int
    eps: float
    rms_eps: float
    prepared: Any = None


@dataclass(eq=False, slots=True)
class Projections:
    """Weights that read the same input; results stand side by side.  When simulating, the first `rounded` of them
    read a rounded input."""

    weights: tuple[Weight, ...]
    rounded: int
    simulate: bool
    columns: tuple[int, ...] = field(init=False)  # where each one's result begins
    width: int = field(init=False)
    prepared: Any = None

    def __post_init__(self) -> None:
        sizes = [weight.shape[0] for weight in self.weights]
        self.columns = tuple(sum(sizes[:number]) for number in range(len(sizes)))
        self.width = sum(sizes)


@dataclass(eq=False, slots=True)
class Queries:
    """From the low-rank query, at `column` of the projections, to the heads' queries (and the indexer's)."""

    column: int
    norm: Tensor  # [rank]
    q_b: Weight
    heads: int
    dim: int
    index_q_b: Weight | None
    index_heads: int
    index_dim: int
    eps: float
    simulate: bool
    prepared: Any = None


@dataclass(eq=False, slots=True)
class Keys:
    """From the projection at `column` to the key/value row."""

    column: int
    norm: Tensor  # [dim]
    eps: float
    simulate: bool
    prepared: Any = None


@dataclass(eq=False, slots=True)
class Compression:
    """A compressor.  width = dim, or 2 · dim where windows overlap: then the first half of the channels speaks for
    the next window and the second half for the current one."""

    value_column: int
    score_column: int
    ape: Tensor  # [ratio, width]
    norm: Tensor  # [dim]
    speed: Tensor  # [half]: angle per position
    eps: float
    index: bool  # its rows are the indexer's
    simulate: bool
    prepared: Any = None

    @property
    def ratio(self) -> int:
        return self.ape.shape[0]

    @property
    def overlap(self) -> bool:
        return self.ape.shape[1] > self.norm.shape[0]


@dataclass(eq=False, slots=True)
class Choice:
    """The indexer's choice: its heads' weights are at `column` of the projections."""

    column: int
    ratio: int
    count: int  # rows chosen at most


@dataclass(eq=False, slots=True)
class Sight:
    """What a token's attention sees: the last `window` raw rows, and compressed rows of `ratio` tokens (0: none)."""

    window: int
    ratio: int
    sinks: Tensor  # [heads]
    prepared: Any = None


@dataclass(eq=False, slots=True)
class Output:
    """From the heads' results to the sublayer's output, by way of a low-rank middle in groups of heads."""

    out_a: Weight
    out_b: Weight
    groups: int
    simulate: bool
    prepared: Any = None


@dataclass(eq=False, slots=True)
class Attention:
    """All of an attention sublayer, from its normed input to its output."""

    inputs: Projections
    queries: Queries
    keys: Keys
    compression: Compression | None
    index_compression: Compression | None
    choice: Choice | None  # with an index_compression
    sight: Sight
    output: Output
    prepared: Any = None


@dataclass(eq=False, slots=True)
class Routing:
    """Which experts a token goes to: by score, or, where there is a table [vocab, count], by token id."""

    gate: Weight  # [experts, hidden]
    bias: Tensor | None
    table: Tensor | None
    count: int
    normalize: bool
    scale: float
    prepared: Any = None
