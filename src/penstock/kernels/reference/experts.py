"""Routing, and the activation inside an expert."""

import torch
import torch.nn.functional as F
from torch import Tensor


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
