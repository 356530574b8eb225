"""The op set: what an implementation for a device has to provide.  A module with these functions satisfies it.

Rows are tokens.  Every op treats each row by itself: what else is in the batch never enters a row's result.
All tensors are float32 unless said otherwise; `window` and `rows` come in the cache's type (float16, bfloat16 or
float32).
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from penstock.kernels import parts
from penstock.kernels.parts import AllRows, LayerRows, RecentRows, Rotation, Span
from penstock.weights.tensor import Weight


class Mix(NamedTuple):
    """How one token's hyper-connection streams go into a sublayer and come back out of it."""

    pre: Tensor  # [rows, streams]           weight of each stream in the sublayer's input
    post: Tensor  # [rows, streams]           how much of the sublayer's output each stream receives
    comb: Tensor  # [rows, streams, streams]  source × destination: how streams carry over


class Expert:
    """The three matrices of one expert: gate and up [width, hidden], down [hidden, width]."""

    __slots__ = ("down", "gate", "prepared", "up")

    def __init__(self, gate: Weight, up: Weight, down: Weight):
        self.gate, self.up, self.down = gate, up, down
        self.prepared: Any = None  # whatever form kernels want it in, made by them and kept here


class SmallOps(Protocol):
    """One formula each."""

    def linear(self, x: Tensor, weight: Weight) -> Tensor:
        """x [rows, in] · weight [out, in] → float32 [rows, out]"""
        ...

    def linears(self, x: Tensor, weights: Sequence[Weight]) -> list[Tensor]:
        """`linear` of one input with each of several weights."""
        ...

    def grouped_linear(self, x: Tensor, weight: Weight, groups: int) -> Tensor:
        """x [rows, groups, in], weight [groups · out, in]: each group its own block → [rows, groups · out]"""
        ...

    def embed(self, tokens: Tensor, weight: Weight) -> Tensor:
        """Rows of the embedding: tokens [rows] → [rows, hidden]"""
        ...

    def rms_norm(self, x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
        """x / sqrt(mean(x²) + eps) over the last axis, times weight if there is one."""
        ...

    def rotate(self, x: Tensor, cos: Tensor, sin: Tensor, inverse: bool = False) -> Tensor:
        """RoPE on the last 2 · cos.shape[-1] channels of x [rows, …, dim], adjacent channels paired."""
        ...

    def angles(self, positions: Tensor, speed: Tensor) -> Rotation:
        """cos and sin of positions [rows] times speed [half], in double precision until the end."""
        ...

    def hyper_mix(
        self, mixes: Tensor, base: Tensor, scale: Tensor, streams: int, iterations: int, eps: float
    ) -> Mix:
        """Mixing weights from the projected streams: mixes [rows, (2 + streams) · streams]."""
        ...

    def hyper_gate(self, mixes: Tensor, base: Tensor, scale: Tensor, eps: float) -> Tensor:
        """sigmoid(mixes · scale + base) + eps: stream weights [rows, streams] of a head."""
        ...

    def hyper_collapse(self, streams: Tensor, pre: Tensor) -> Tensor:
        """[rows, streams, hidden], [rows, streams] → [rows, hidden]"""
        ...

    def hyper_expand(self, y: Tensor, streams: Tensor, mix: Mix) -> Tensor:
        """Sublayer output y [rows, hidden] back into the streams [rows, streams, hidden]."""
        ...

    def attend(
        self,
        q: Tensor,
        window: Tensor,
        window_size: int,
        sinks: Tensor,
        rows: Tensor | None,
        visible: Tensor | None,
        picks: Tensor | None,
    ) -> Tensor:
        """Shared-KV attention with a sink.  q [T, heads, dim]; window [P + T, dim]: the raw rows of the last P
        earlier tokens and of these T; rows [R, dim]: compressed rows, of which token t sees the first
        visible[t], or, where picks [T, k] is given, just those (−1: none).  → [T, heads, dim]"""
        ...

    def pool(self, values: Tensor, scores: Tensor) -> Tensor:
        """Per channel, the softmax-weighted mean over candidates: [n, candidates, dim] twice → [n, dim]"""
        ...

    def select(self, q: Tensor, gates: Tensor, rows: Tensor, visible: Tensor, count: int) -> Tensor:
        """Lightning indexer: q [T, heads, dim], gates [T, heads], rows [R, dim] → picks [T, ≤ count], −1 where
        fewer rows are visible.  The highest scores win, ties go to the lower row; picks are in rising order."""
        ...

    def route(
        self,
        logits: Tensor,
        bias: Tensor | None,
        ids: Tensor | None,
        count: int,
        normalize: bool,
        scale: float,
    ) -> tuple[Tensor, Tensor]:
        """Expert ids and weights [rows, count] from router logits [rows, experts].  Scores are
        sqrt(softplus(logits)).  The `count` highest of score + bias are chosen, ties to the lower id, unless ids
        [rows, count] are given.  Weights are the chosen unbiased scores, divided by their sum if `normalize`,
        times `scale`."""
        ...

    def swiglu(self, gate: Tensor, up: Tensor, limit: float) -> Tensor:
        """silu(min(gate, limit)) · clamp(up, ±limit)"""
        ...

    def experts(
        self,
        x: Tensor,
        ids: Tensor,
        weights: Tensor,
        chosen: Mapping[int, Expert],
        limit: float,
        shared: Expert | None = None,
        shared_limit: float = 0.0,
        out: Tensor | None = None,
    ) -> Tensor:
        """Sum over each row's experts of weight · down(swiglu(gate(x), up(x), limit)).  x [rows, hidden]; ids,
        weights [rows, k]; `chosen` has every id that occurs.  Added in ascending order of id, those with the same
        id in order of slot, then the shared expert, which has a limit of its own, if there is one.

        With `out` [rows, hidden] the sum goes on there, and ids that `chosen` does not have are left out: given the
        ids in ascending shares, and the shared expert with the last, the sum is to the bit the one made at once."""
        ...

    def expert_parts(
        self,
        x: Tensor,
        ids: Tensor,
        chosen: Mapping[int, Expert],
        limit: float,
        shared: Expert | None,
        shared_limit: float,
        parts: Tensor,
    ) -> None:
        """The terms of that sum, for experts that come in any order.  parts [rows · k + rows, hidden]: those of
        `chosen` go to their rows and slots, the shared expert's behind all of them."""
        ...

    def expert_sum(self, ids: Tensor, weights: Tensor, parts: Tensor, shared: bool) -> Tensor:
        """The sum of all parts: to the bit what `experts` gives."""
        ...

    def round_fp8(self, x: Tensor, group: int) -> Tensor:
        """Round trip through FP8 e4m3 with one power-of-two scale per `group` channels."""
        ...

    def round_fp4(self, x: Tensor, group: int) -> Tensor:
        """Round trip through FP4 e2m1 with one power-of-two scale per `group` channels."""
        ...

    def hadamard(self, x: Tensor) -> Tensor:
        """Normalised Walsh–Hadamard transform of the last axis (a power of two)."""
        ...


class Ops(SmallOps, Protocol):
    """The steps of a layer, each in one call: what a forward pass is made of.  `composed` says what each one does.

    Whoever wants to keep a result keeps the tensor itself, not a view of it: once it is let go, its memory may serve
    the next call with the same part.  A part is used by one thread at a time.
    """

    def hyper_enter(self, streams: Tensor, part: parts.Hyper) -> tuple[Tensor, Tensor]:
        """Into a sublayer: streams [rows, n, hidden] → its input [rows, hidden], collapsed and normed, and the mix
        [rows, pre n | post n | comb n · n] that `hyper_leave` needs."""
        ...

    def hyper_leave(self, y: Tensor, streams: Tensor, mix: Tensor) -> None:
        """Out of a sublayer: its output y [rows, hidden] goes into the streams, in place."""
        ...

    def hyper_between(
        self, y: Tensor, streams: Tensor, mix: Tensor, part: parts.Hyper
    ) -> tuple[Tensor, Tensor]:
        """Out of one sublayer and into the next: `hyper_leave`, then `hyper_enter`."""
        ...

    def project(self, x: Tensor, part: parts.Projections) -> Tensor:
        """x [rows, hidden] → [rows, part.width]"""
        ...

    def queries(
        self, projected: Tensor, part: parts.Queries, rotation: Rotation
    ) -> tuple[Tensor, Tensor | None]:
        """Queries [rows, heads, dim], normed and turned, and the indexer's [rows, index_heads, index_dim]."""
        ...

    def remember(
        self, projected: Tensor, part: parts.Keys, rotation: Rotation, span: Span, window: RecentRows
    ) -> None:
        """Key/value rows of one sequence into its window, rounded to the window's type."""
        ...

    def compress(
        self, projected: Tensor, part: parts.Compression, span: Span, frontier: RecentRows, rows: AllRows
    ) -> None:
        """Tokens of one sequence into a compressor: what they complete becomes rows, the rest waits at the
        frontier, [value | score] of each token."""
        ...

    def choose(
        self, index_q: Tensor, projected: Tensor, part: parts.Choice, span: Span, rows: AllRows
    ) -> Tensor | None:
        """Compressed rows that one sequence's tokens may see [count, k], −1 behind the last; None: all there are."""
        ...

    def look(
        self,
        q: Tensor,
        part: parts.Sight,
        rotation: Rotation,
        span: Span,
        window: RecentRows,
        rows: AllRows | None,
        picks: Tensor | None,
    ) -> None:
        """Attention of one sequence's tokens, positions turned back out of the result, which takes the place of
        their queries q [rows, heads, dim]."""
        ...

    def output(self, heads: Tensor, part: parts.Output) -> Tensor:
        """Heads' results [rows, heads, dim] → [rows, hidden]"""
        ...

    def attention(
        self,
        x: Tensor,
        part: parts.Attention,
        rotation: Rotation,
        spans: Sequence[Span],
        states: Sequence[LayerRows],
    ) -> Tensor:
        """A whole attention sublayer: x [rows, hidden] → [rows, hidden].  spans make up all rows; states, one for
        each of them, are filled."""
        ...

    def choose_experts(self, x: Tensor, tokens: Tensor, part: parts.Routing) -> tuple[Tensor, Tensor]:
        """Expert ids and weights [rows, count] for x [rows, hidden]."""
        ...
