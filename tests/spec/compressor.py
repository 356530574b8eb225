"""Compressors: every `ratio` tokens become one row."""

import torch
from torch import Tensor

from penstock.backend.deepseek_v4 import CompressorSpec
from tests.spec.linear import linear, vector
from tests.spec.norm import angles, rms_norm, rotate


def compress(x: Tensor, spec: CompressorSpec, eps: float) -> Tensor:
    """All tokens of a sequence x [tokens, hidden] → the rows they complete [tokens // ratio, dim]"""
    ratio, count = spec.ratio, len(x) // spec.ratio
    x = x[: count * ratio]
    values = linear(x, spec.values).unflatten(0, (count, ratio))
    scores = linear(x, spec.scores).unflatten(0, (count, ratio)) + vector(spec.ape)
    if spec.overlap:
        values, scores = _overlapping(values, 0.0), _overlapping(scores, -torch.inf)
    pooled = (torch.softmax(scores, dim=1) * values).sum(1)  # per channel
    return rotate(rms_norm(pooled, spec.norm, eps), angles(torch.arange(count) * ratio, spec.frequencies))


def _overlapping(windows: Tensor, missing: float) -> Tensor:
    """[windows, ratio, 2 · dim] → candidates [windows, 2 · ratio, dim]: the first channels of the window before, then
    the second ones of the window itself."""
    ahead, own = windows.chunk(2, dim=-1)
    before = torch.cat((torch.full_like(ahead[:1], missing), ahead))[:-1]
    return torch.cat((before, own), dim=1)
