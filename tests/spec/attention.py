"""A whole attention sublayer, over a whole sequence."""

from dataclasses import dataclass

import torch
from torch import Tensor

from penstock.backend.deepseek_v4 import AttentionSpec
from tests.spec.compressor import compress
from tests.spec.indexer import select
from tests.spec.linear import grouped_linear, linear, vector
from tests.spec.low_precision import LINEAR_GROUP, hadamard, round_fp4, round_fp8, round_rows
from tests.spec.norm import angles, rms_norm, rotate


@dataclass(frozen=True)
class Result:
    out: Tensor  # [tokens, hidden]
    window: Tensor  # [tokens, dim]: key/value rows as they are stored
    rows: Tensor | None  # [tokens // ratio, dim]
    index_rows: Tensor | None


def attention(x: Tensor, spec: AttentionSpec, dtype: torch.dtype, low: bool = False) -> Result:
    """x [tokens, hidden]: all tokens of a sequence.  dtype: how rows are stored; low: in low precision"""
    rope = 2 * len(spec.frequencies)
    positions = torch.arange(len(x))
    angle = angles(positions, spec.frequencies)
    rounded = round_fp8(x, LINEAR_GROUP) if low else x

    query = rms_norm(linear(rounded, spec.q_a), spec.q_norm, spec.eps)
    query = round_fp8(query, LINEAR_GROUP) if low else query
    q = linear(query, spec.q_b).unflatten(1, (spec.heads, spec.dim))
    q = rotate(rms_norm(q, None, spec.eps), angle)

    window = rotate(rms_norm(linear(rounded, spec.kv), spec.kv_norm, spec.eps), angle)
    window = (round_rows(window, rope) if low else window).to(dtype)
    age = positions[:, None] - positions
    seen = (age >= 0) & (age < spec.window)

    rows = index_rows = None
    keys, every = window.double(), seen
    if spec.compressor is not None:
        rows = compress(x, spec.compressor, spec.eps)
        rows = (round_rows(rows, rope) if low else rows).to(dtype)
        # The token that completes a row sees it already.
        visible = torch.arange(len(rows)) < (positions[:, None] + 1) // spec.compressor.ratio
        if (indexer := spec.indexer) is not None:
            index_rows = compress(x, indexer.compressor, spec.eps)
            index_q = linear(query, indexer.q_b).unflatten(1, (indexer.heads, indexer.dim))
            index_q = rotate(index_q, angle)
            if low:
                index_q, index_rows = round_fp4(hadamard(index_q), 32), round_fp4(hadamard(index_rows), 32)
            index_rows = index_rows.to(dtype)
            gates = linear(x, indexer.gates)
            visible = select(index_q, gates, index_rows.double(), visible, indexer.topk)
        keys, every = torch.cat((keys, rows.double())), torch.cat((seen, visible), dim=1)

    heads = rotate(attend(q, keys, every, vector(spec.sinks)), -angle)
    middle = grouped_linear(heads.flatten(1), spec.out_a, spec.groups)
    out = linear(round_fp8(middle, LINEAR_GROUP) if low else middle, spec.out_b)
    return Result(out, window, rows, index_rows)


def attend(q: Tensor, keys: Tensor, seen: Tensor, sinks: Tensor) -> Tensor:
    """Keys [K, dim] are the values too.  q [T, heads, dim], seen [T, K], sinks [heads] → [T, heads, dim]"""
    scores = torch.einsum("thd,kd->thk", q, keys) * q.shape[-1] ** -0.5
    scores = scores.masked_fill(~seen[:, None], -torch.inf)
    sink = sinks.expand(len(q), -1)[..., None]  # takes its share of the softmax, and has no value
    weights = torch.softmax(torch.cat((scores, sink), dim=-1), dim=-1)[..., :-1]
    return torch.einsum("thk,kd->thd", weights, keys)
