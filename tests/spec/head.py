"""From streams to logits, and the way into a draft block."""

from collections.abc import Sequence

import torch
from torch import Tensor

from penstock.backend.base import DeviceWeight
from penstock.backend.deepseek_v4 import HeadSpec, JoinSpec
from tests.spec.linear import linear, vector
from tests.spec.low_precision import LINEAR_GROUP, round_fp8
from tests.spec.norm import rms_norm


def head(streams: Tensor, spec: HeadSpec, output: Sequence[DeviceWeight]) -> Tensor:
    """streams [rows, n, hidden] → logits [rows, vocab].  output: pieces of the output matrix's rows"""
    projected = linear(rms_norm(streams.flatten(1), None, spec.rms_eps), spec.fn)
    gates = torch.sigmoid(projected * vector(spec.scale) + vector(spec.base)) + spec.eps
    folded = rms_norm(torch.einsum("rn,rnd->rd", gates, streams), spec.norm, spec.rms_eps)
    return torch.cat([linear(folded, piece) for piece in output], dim=1)


def join(streams: Tensor, embedded: Tensor, spec: JoinSpec, low_precision: bool = False) -> Tensor:
    """streams [rows, n, hidden], embedded [rows, hidden] → [rows, n, hidden]"""
    e, h = rms_norm(embedded, spec.embedding_norm, spec.eps), rms_norm(streams, spec.stream_norm, spec.eps)
    if low_precision:
        e, h = round_fp8(e, LINEAR_GROUP), round_fp8(h, LINEAR_GROUP)
    e = e[:, None].expand_as(h)
    if len(spec.projections) == 1:
        return linear(torch.cat((e, h), dim=-1).flatten(0, 1), spec.projections[0]).view_as(h)
    parts = [linear(x.flatten(0, 1), w) for x, w in zip((e, h), spec.projections, strict=True)]
    return (parts[0] + parts[1]).view_as(h)
