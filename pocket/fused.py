"""The chains of small operations that are worth compiling: mixing of streams, and the experts' two products.

They see flat tokens, so one compilation serves every layer and every row length.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from pocket.basics import rms


def run_experts(x: Tensor, gate_up: Tensor, down: Tensor, weights: Tensor, limit: float) -> Tensor:
    """x [tokens, hidden], gate_up [experts, 2 · width, hidden], down [experts, hidden, width], weights
    [tokens, experts] → [tokens, hidden]"""
    experts, width = down.shape[0], down.shape[2]
    gate, up = F.linear(x, gate_up.flatten(0, 1)).unflatten(-1, (experts, 2, width)).unbind(-2)
    inner = F.silu(gate.clamp(max=limit)) * up.clamp(-limit, limit)
    inner = (inner * weights.unsqueeze(-1)).flatten(-2)  # [tokens, experts · width]
    return F.linear(inner, down.transpose(0, 1).flatten(1))


def mix_streams(
    streams: Tensor, fn: Tensor, base: Tensor, scale: Tensor, sinkhorn: int, hc_eps: float, rms_eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """streams [tokens, n, hidden] → sublayer input [tokens, hidden], post [tokens, n], comb [tokens, n, n]"""
    n = streams.shape[1]
    mixes = F.linear(rms(streams.flatten(1), None, rms_eps), fn)
    pre, post, comb = mixes.split((n, n, n * n), dim=-1)
    pre = torch.sigmoid(pre * scale[0] + base[:n]) + hc_eps
    post = 2 * torch.sigmoid(post * scale[1] + base[n : 2 * n])
    comb = torch.softmax((comb * scale[2] + base[2 * n :]).unflatten(-1, (n, n)), dim=-1) + hc_eps
    comb = comb / (comb.sum(-2, keepdim=True) + hc_eps)
    for _ in range(sinkhorn - 1):
        comb = comb / (comb.sum(-1, keepdim=True) + hc_eps)
        comb = comb / (comb.sum(-2, keepdim=True) + hc_eps)
    return (pre.unsqueeze(-1) * streams).sum(1), post, comb


def expand_streams(y: Tensor, streams: Tensor, post: Tensor, comb: Tensor) -> Tensor:
    """Sublayer output back into the streams; comb goes from source to destination."""
    carried = (comb.unsqueeze(-1) * streams.unsqueeze(2)).sum(1)
    return post.unsqueeze(-1) * y.float().unsqueeze(1) + carried


class Fused:
    """The functions as they are, until `compile` replaces them."""

    def __init__(self) -> None:
        self.mix, self.expand, self.experts = mix_streams, expand_streams, run_experts

    def compile(self) -> None:
        self.mix = torch.compile(mix_streams, dynamic=False)
        self.expand = torch.compile(expand_streams, dynamic=False)
        self.experts = torch.compile(run_experts, dynamic=False)


FUSED = Fused()
