"""Experts of the training model."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pocket.basics import linear
from pocket.config import PocketConfig
from pocket.fused import FUSED


class Gate(nn.Module):
    """Scores by a linear map; a fixed table or the best scores choose.  Load steers the bias, not gradients."""

    tid2eid: Tensor
    bias: Tensor

    def __init__(self, c: PocketConfig, hashed: bool, seed: int):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(c.experts, c.hidden) * c.hidden**-0.5)
        if hashed:
            order = torch.rand(c.vocab, c.experts, generator=torch.Generator().manual_seed(seed)).argsort(1)
            self.register_buffer("tid2eid", order[:, : c.experts_used].contiguous())
        else:
            self.register_buffer("bias", torch.zeros(c.experts))
        self.hashed = hashed


class MoE(nn.Module):
    """All experts as two wide products: at this size computing them all is cheaper than sorting tokens."""

    def __init__(self, c: PocketConfig, hashed: bool, seed: int):
        super().__init__()
        self.c = c
        self.gate = Gate(c, hashed, seed)
        width, hidden = c.expert_width, c.hidden
        self.gate_up = nn.Parameter(torch.randn(c.experts, 2 * width, hidden) * hidden**-0.5)
        self.down = nn.Parameter(torch.randn(c.experts, hidden, width) * 0.5 * width**-0.5)
        self.shared_experts = nn.ModuleDict(
            {"w1": linear(hidden, width), "w2": linear(width, hidden, gain=0.5), "w3": linear(hidden, width)}
        )

    def route(self, x: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Weight of every expert [tokens, experts], zero where not chosen; and the unbiased scores."""
        c, gate = self.c, self.gate
        scores = torch.sqrt(F.softplus(F.linear(x.float(), gate.weight)) + 1e-12)
        ids = (
            gate.tid2eid[tokens] if gate.hashed else (scores + gate.bias).topk(c.experts_used, dim=-1).indices
        )
        chosen = torch.zeros_like(scores).scatter(-1, ids, scores.gather(-1, ids))
        return chosen * (c.routed_scale / chosen.sum(-1, keepdim=True)), scores

    def forward(self, x: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """x → (output, how often each expert was chosen [experts])"""
        c = self.c
        compute = torch.bfloat16 if x.is_cuda else torch.float32
        with torch.autocast("cuda", enabled=False):
            weights, _ = self.route(x, tokens)
        y = x.to(compute)
        gate_up, down = (self.quantised(w).to(compute) for w in (self.gate_up, self.down))
        routed = FUSED.experts(y, gate_up, down, weights.to(compute), c.swiglu_limit)
        shared = self.shared_experts
        gate = shared["w1"](y).clamp(max=c.swiglu_limit)
        up = shared["w3"](y).clamp(-c.swiglu_limit, c.swiglu_limit)
        return routed.float() + shared["w2"](F.silu(gate) * up).float(), (weights > 0).float().sum(0)

    quantise = False  # set for the last phase: experts as the shipped file will hold them

    def quantised(self, w: Tensor) -> Tensor:
        """The weights, or what the file will hold of them; gradients pass as if nothing were rounded."""
        return w + (round_mxfp4(w) - w).detach() if self.quantise else w


def round_mxfp4(w: Tensor) -> Tensor:
    """Round trip through MXFP4: 32 values share a power of two."""
    groups = w.detach().float().unflatten(-1, (-1, 32))
    largest = groups.abs().amax(-1, keepdim=True).clamp(min=2.0**-100)
    scale = torch.exp2(torch.floor(torch.log2(largest)) - 2)
    size = (groups.abs() / scale).clamp(max=6.0)
    step = torch.where(size < 2, 0.5, torch.where(size < 4, 1.0, 2.0))
    rounded: Tensor = torch.round(size / step) * step * scale * groups.sign()
    return rounded.flatten(-2)
