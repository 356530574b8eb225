"""Hyper-connections: how the parallel residual streams enter and leave a sublayer."""

import torch
from torch import Tensor

from penstock.backend.deepseek_v4 import HyperSpec
from tests.spec.linear import linear, vector
from tests.spec.norm import rms_norm


def enter(streams: Tensor, spec: HyperSpec) -> tuple[Tensor, Tensor]:
    """streams [rows, n, hidden] → the sublayer's input [rows, hidden], and mix [rows, pre n | post n | comb n · n]"""
    mix = mixing(linear(rms_norm(streams.flatten(1), None, spec.rms_eps), spec.fn), spec)
    collapsed = torch.einsum("rn,rnd->rd", mix[:, : spec.streams], streams)
    return rms_norm(collapsed, spec.norm, spec.rms_eps), mix


def mixing(projected: Tensor, spec: HyperSpec) -> Tensor:
    n, eps = spec.streams, spec.eps
    scale = vector(spec.scale).repeat_interleave(torch.tensor([n, n, n * n]))
    pre, post, comb = (projected * scale + vector(spec.base)).split([n, n, n * n], dim=-1)
    c = torch.softmax(comb.unflatten(-1, (n, n)), dim=-1) + eps  # [rows, source, destination]
    # Sinkhorn: columns first and columns last, so columns sum to one and rows nearly so.
    c = c / (c.sum(-2, keepdim=True) + eps)
    for _ in range(spec.iterations - 1):
        c = c / (c.sum(-1, keepdim=True) + eps)
        c = c / (c.sum(-2, keepdim=True) + eps)
    return torch.cat((torch.sigmoid(pre) + eps, 2 * torch.sigmoid(post), c.flatten(1)), dim=-1)


def leave(y: Tensor, streams: Tensor, mix: Tensor) -> Tensor:
    """The sublayer's output y [rows, hidden] and the streams before it → the streams behind it"""
    n = streams.shape[1]
    _, post, comb = mix.split([n, n, n * n], dim=-1)
    carried = torch.einsum("rij,rid->rjd", comb.unflatten(-1, (n, n)), streams)
    out: Tensor = post[..., None] * y[:, None] + carried
    return out
