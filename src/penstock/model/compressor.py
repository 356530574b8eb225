"""Compressors: every `ratio` tokens become one row that stands for them in attention (or in the index)."""

import torch
from torch import Tensor

from penstock.model.batch import Segment
from penstock.model.blueprint import Blueprint
from penstock.model.state import CompressorState
from penstock.weights.config import AttentionKind, LayerConfig


class Compressor:
    """Pools windows of `ratio` tokens, per channel, with learned scores.

    In sparse layers windows overlap: a row also draws on the window before, through a second series of channels
    (the first half of the projections speaks for the next window, the second half for the current one).
    """

    def __init__(self, blueprint: Blueprint, prefix: str, layer: LayerConfig):
        self.ops, self.frequencies = blueprint.ops, blueprint.compressed
        self.ratio = layer.ratio
        self.overlap = layer.attention is AttentionKind.SPARSE
        self.eps = blueprint.config.rms_eps
        self.kv = blueprint.weight(f"{prefix}_kv.weight")
        self.gate = blueprint.weight(f"{prefix}_gate.weight")
        self.ape = blueprint.vector(f"{prefix}_ape.weight")  # [ratio, width]
        self.norm = blueprint.vector(f"{prefix}_norm.weight")  # [dim]

    def project(self, x: Tensor, positions: Tensor) -> Tensor:
        """Values and scores of every token, side by side.  x [rows, hidden] → [rows, 2 · width]"""
        values = self.ops.linear(x, self.kv)
        scores = self.ops.linear(x, self.gate) + self.ape[positions % self.ratio]
        return torch.cat((values, scores), dim=-1)

    def push(self, projected: Tensor, segment: Segment, state: CompressorState) -> tuple[int, Tensor]:
        """Adds one segment's tokens.  projected [count, 2 · width] → (first new row, finished rows [n, dim])"""
        ratio, position = self.ratio, segment.position
        first = position // ratio
        count = (position + segment.count) // ratio - first
        back = ratio if self.overlap else 0  # overlapping windows reach into the one before
        begin = max(0, first * ratio - back)
        state.frontier.stage(position, projected)
        if count == 0:
            return first, projected.new_empty(0, self.norm.shape[0])
        series = torch.cat((state.frontier.read(begin, position), projected))
        windows = series[: (first + count) * ratio - begin].unflatten(
            0, (-1, ratio)
        )  # [windows, ratio, 2 · width]
        values, scores = windows.chunk(2, dim=-1)
        if self.overlap:
            values = self._overlapping(values, 0.0, count)
            scores = self._overlapping(scores, -torch.inf, count)
        rows = self.ops.rms_norm(self.ops.pool(values, scores), self.norm, self.eps)
        starts = torch.arange(first, first + count) * ratio
        return first, self.ops.rotate(rows, *self.frequencies.rotation(starts))

    def _overlapping(self, windows: Tensor, missing: float, count: int) -> Tensor:
        """[windows, ratio, 2 · dim] → candidates [count, 2 · ratio, dim]: the previous window's first series,
        then the current window's second."""
        before, current = windows.chunk(2, dim=-1)
        if windows.shape[0] == count:  # the very first window of a sequence has none before it
            before = torch.cat((torch.full_like(before[:1], missing), before))
        return torch.cat((before[:count], current[-count:]), dim=1)
