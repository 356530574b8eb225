"""Routing, and the activation inside an expert."""

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from penstock.kernels.ops import Expert
from penstock.kernels.reference.linear import linear


def route(
    logits: Tensor, bias: Tensor | None, ids: Tensor | None, count: int, normalize: bool, scale: float
) -> tuple[Tensor, Tensor]:
    scores = torch.sqrt(F.softplus(logits))  # torch switches to the identity above 20: no overflow
    if ids is None:
        biased = scores if bias is None else scores + bias
        ids = torch.sort(biased, dim=-1, descending=True, stable=True).indices[:, :count]
    weights = scores.gather(1, ids)
    if normalize:
        weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
    return ids, weights * scale


def swiglu(gate: Tensor, up: Tensor, limit: float) -> Tensor:
    return F.silu(gate.clamp(max=limit)) * up.clamp(min=-limit, max=limit)


def experts(
    x: Tensor,
    ids: Tensor,
    weights: Tensor,
    chosen: Mapping[int, Expert],
    limit: float,
    shared: Expert | None = None,
    shared_limit: float = 0.0,
    out: Tensor | None = None,
) -> Tensor:
    missing = set(ids.flatten().tolist()) - chosen.keys()
    if out is None:
        if missing:
            raise ValueError(f"experts: expert {min(missing)} is routed to but not given")
        out = torch.zeros_like(x)
    for number in sorted(chosen):
        rows, slots = torch.where(ids == number)
        out.index_add_(0, rows, _expert(x[rows], chosen[number], limit) * weights[rows, slots, None])
    return out if shared is None else out.add_(_expert(x, shared, shared_limit))


def expert_parts(
    x: Tensor,
    ids: Tensor,
    chosen: Mapping[int, Expert],
    limit: float,
    shared: Expert | None,
    shared_limit: float,
    parts: Tensor,
) -> None:
    rows, slots = ids.shape
    for number, expert in chosen.items():
        own, places = torch.where(ids == number)
        parts[own * slots + places] = _expert(x[own], expert, limit)
    if shared is not None:
        parts[rows * slots :] = _expert(x, shared, shared_limit)


def expert_sum(ids: Tensor, weights: Tensor, parts: Tensor, shared: bool) -> Tensor:
    rows, slots = ids.shape
    out = parts.new_zeros(rows, parts.shape[1])
    order = torch.argsort(ids, dim=1, stable=True)
    for place in range(slots):
        slot = order[:, place]
        row = torch.arange(rows)
        out += parts[row * slots + slot] * weights[row, slot, None]
    return out + parts[rows * slots :] if shared else out


def _expert(x: Tensor, expert: Expert, limit: float) -> Tensor:
    return linear(swiglu(linear(x, expert.gate), linear(x, expert.up), limit), expert.down)
