"""Experts as DeepSeek's own code computes them: what enters the down projection is rounded to FP8 in groups of 128,
after the routing weight has been multiplied in."""

from collections.abc import Mapping

import torch
from torch import Tensor

from penstock.kernels.ops import Expert, Ops


def rounded_sum(
    ops: Ops,
    x: Tensor,
    ids: Tensor,
    weights: Tensor,
    chosen: Mapping[int, Expert],
    limit: float,
    shared: Expert | None,
    shared_limit: float,
    out: Tensor,
) -> None:
    """Adds what `chosen` and the shared expert have to say to out [rows, hidden]; ids without expert are left out."""
    for number in sorted(chosen):
        rows, slots = torch.where(ids == number)
        out.index_add_(0, rows, _rounded(ops, x[rows], weights[rows, slots, None], chosen[number], limit))
    if shared is not None:
        out += _rounded(ops, x, x.new_ones(x.shape[0], 1), shared, shared_limit)


def _rounded(ops: Ops, x: Tensor, weight: Tensor, expert: Expert, limit: float) -> Tensor:
    """x [rows, hidden], weight [rows, 1] → the expert's weighted output [rows, hidden]"""
    gate, up = ops.linears(x, (expert.gate, expert.up))
    inner = ops.swiglu(gate, up, limit)
    return ops.linear(ops.round_fp8(inner * weight, 128), expert.down)
