"""The chains of operations that are worth compiling: mixing of streams, the experts' two products, attention.

The first two see flat tokens, so one compilation serves every layer and every row length; attention is compiled
once for each ratio and length.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from pocket.basics import rms
from pocket.config import ALIGN


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


def attend(
    q: Tensor,
    kv: Tensor,
    document: Tensor,
    sinks: Tensor,
    window: int,
    far_rows: Tensor | None,
    visible: Tensor | None,
) -> Tensor:
    """One softmax over window, sink and compressed rows.  q [rows, length, heads, dim], scaled; kv [rows, length,
    dim]; document [rows, length]; far_rows [rows, windows, dim]; visible [rows, length, windows] → like q"""
    rows, length, heads, _ = q.shape
    blocks = length // ALIGN
    own = kv.unflatten(1, (blocks, ALIGN))
    near = torch.cat((F.pad(own, (0, 0, 0, 0, 1, 0))[:, :-1], own), dim=2)  # [rows, blocks, 256, dim]
    documents = document.unflatten(1, (blocks, ALIGN))
    near_documents = torch.cat((F.pad(documents, (0, 0, 1, 0), value=-1)[:, :-1], documents), dim=2)
    key, query = torch.arange(2 * ALIGN, device=q.device), torch.arange(ALIGN, device=q.device)[:, None]
    band = (key > query + ALIGN - window) & (key <= query + ALIGN)
    seen = band & (documents[..., :, None] == near_documents[..., None, :])  # [rows, blocks, 128, 256]
    block_q = q.unflatten(1, (blocks, ALIGN)).transpose(2, 3)  # [rows, blocks, heads, 128, dim]
    local = (block_q @ near.unsqueeze(2).transpose(-1, -2)).float().masked_fill(~seen.unsqueeze(2), -1e30)
    logits = [local.transpose(2, 3).flatten(1, 2), sinks.view(1, 1, -1, 1).expand(rows, length, -1, 1)]
    if far_rows is not None and visible is not None:
        far = (q.flatten(1, 2) @ far_rows.transpose(1, 2)).float().unflatten(1, (length, heads))
        logits.append(far.masked_fill(~visible.unsqueeze(2), -1e30))
    weights = torch.softmax(torch.cat(logits, dim=-1), dim=-1).to(q.dtype)  # [rows, length, heads, keys]
    near_weights = weights[..., : 2 * ALIGN].unflatten(1, (blocks, ALIGN)).transpose(2, 3)
    out: Tensor = (near_weights @ near.unsqueeze(2)).transpose(2, 3).flatten(1, 2)
    if far_rows is not None:
        far_weights = weights[..., 2 * ALIGN + 1 :].flatten(1, 2)
        out = out + (far_weights @ far_rows).unflatten(1, (length, heads))
    return out


def index_loss(q: Tensor, far_rows: Tensor, scores: Tensor, visible: Tensor, counts: Tensor) -> Tensor:
    """KL from what all heads together attend to, among the visible rows, to what the indexer would choose; the
    mean over the tokens that count.  scores [rows, length, windows]"""
    far = (q.flatten(1, 2) @ far_rows.transpose(1, 2)).float().unflatten(1, q.shape[1:3])
    target = torch.softmax(far.masked_fill(~visible.unsqueeze(2), -1e30), dim=-1).mean(2)
    learned = torch.log_softmax(scores.masked_fill(~visible, -1e30), dim=-1)
    kl = (target * (target.clamp(min=1e-9).log() - learned)).masked_fill(~visible, 0.0).sum(-1)
    return (kl * counts).sum() / counts.sum().clamp(min=1)


class Fused:
    """The functions as they are, until `compile` replaces them."""

    def __init__(self) -> None:
        self.mix, self.expand, self.experts = mix_streams, expand_streams, run_experts
        self.attend, self.index_loss = attend, index_loss

    def compile(self) -> None:
        """Worth it on a GPU only."""
        torch._dynamo.config.cache_size_limit = 32
        for name in ("mix", "expand", "experts", "attend", "index_loss"):
            setattr(self, name, torch.compile(getattr(self, name), dynamic=False))


FUSED = Fused()
