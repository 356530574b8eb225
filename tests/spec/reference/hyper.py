"""Hyper-connections: how the parallel residual streams enter and leave a sublayer."""

import torch
from torch import Tensor

from penstock.kernels.ops import Mix


def hyper_mix(mixes: Tensor, base: Tensor, scale: Tensor, streams: int, iterations: int, eps: float) -> Mix:
    n = streams
    pre, post, comb = (mixes * scale.repeat_interleave(torch.tensor([n, n, n * n])) + base).split(
        [n, n, n * n], -1
    )
    c = torch.softmax(comb.unflatten(-1, (n, n)), dim=-1) + eps  # [rows, source, destination]
    # Sinkhorn: columns first and columns last, so columns sum to one and rows nearly so.
    c = c / (c.sum(-2, keepdim=True) + eps)
    for _ in range(iterations - 1):
        c = c / (c.sum(-1, keepdim=True) + eps)
        c = c / (c.sum(-2, keepdim=True) + eps)
    return Mix(torch.sigmoid(pre) + eps, 2 * torch.sigmoid(post), c)


def hyper_gate(mixes: Tensor, base: Tensor, scale: Tensor, eps: float) -> Tensor:
    return torch.sigmoid(mixes * scale + base) + eps


def hyper_collapse(streams: Tensor, pre: Tensor) -> Tensor:
    return torch.einsum("rn,rnd->rd", pre, streams)


def hyper_expand(y: Tensor, streams: Tensor, mix: Mix) -> Tensor:
    return mix.post.unsqueeze(-1) * y.unsqueeze(1) + torch.einsum("rij,rid->rjd", mix.comb, streams)
