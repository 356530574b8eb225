"""The op set: what an implementation for a device has to provide.  A module with these functions satisfies it.

Rows are tokens.  Every op treats each row by itself: what else is in the batch never enters a row's result.
All tensors are float32 unless said otherwise; `window` and `rows` come in the cache's type (float16, bfloat16 or
float32).
"""

from typing import NamedTuple, Protocol

from torch import Tensor

from penstock.weights.tensor import Weight


class Mix(NamedTuple):
    """How one token's hyper-connection streams go into a sublayer and come back out of it."""

    pre: Tensor  # [rows, streams]           weight of each stream in the sublayer's input
    post: Tensor  # [rows, streams]           how much of the sublayer's output each stream receives
    comb: Tensor  # [rows, streams, streams]  source × destination: how streams carry over


class Ops(Protocol):
    def linear(self, x: Tensor, weight: Weight) -> Tensor:
        """x [rows, in] · weight [out, in] → float32 [rows, out]"""
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

    def round_fp8(self, x: Tensor, group: int) -> Tensor:
        """Round trip through FP8 e4m3 with one power-of-two scale per `group` channels."""
        ...

    def round_fp4(self, x: Tensor, group: int) -> Tensor:
        """Round trip through FP4 e2m1 with one power-of-two scale per `group` channels."""
        ...

    def hadamard(self, x: Tensor) -> Tensor:
        """Normalised Walsh–Hadamard transform of the last axis (a power of two)."""
        ...
