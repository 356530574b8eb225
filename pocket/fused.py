"""The chains of operations that are worth compiling.

Most of them see flat tokens, so one compilation serves every layer and every row length; what relates tokens of a row
to each other is compiled once for each ratio and length.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from pocket.basics import rms, rotate
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
    streams: Tensor,
    fn: Tensor,
    base: Tensor,
    scale: Tensor,
    norm: Tensor,
    sinkhorn: int,
    hc_eps: float,
    rms_eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """streams [tokens, n, hidden] → normed sublayer input [tokens, hidden], post [tokens, n], comb [tokens, n, n]"""
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
    return rms((pre.unsqueeze(-1) * streams).sum(1), norm, rms_eps), post, comb


def expand_streams(y: Tensor, streams: Tensor, post: Tensor, comb: Tensor) -> Tensor:
    """Sublayer output back into the streams; comb goes from source to destination."""
    carried = (comb.unsqueeze(-1) * streams.unsqueeze(2)).sum(1)
    expanded: Tensor = post.unsqueeze(-1) * y.float().unsqueeze(1) + carried
    return expanded


def make_queries(x: Tensor, position: Tensor, speed: Tensor, eps: float, compute: torch.dtype) -> Tensor:
    """x [tokens, heads, dim] → the same, normed, rotated and scaled"""
    scale: float = x.shape[-1] ** -0.5
    return (rotate(rms(x, None, eps), position, speed) * scale).to(compute)


def make_keys(
    x: Tensor, norm: Tensor, position: Tensor, speed: Tensor, eps: float, compute: torch.dtype
) -> Tensor:
    """x [tokens, dim] → the same, normed and rotated"""
    return rotate(rms(x, norm, eps), position, speed).to(compute)


def turn(x: Tensor, position: Tensor, speed: Tensor, compute: torch.dtype, sign: float = 1.0) -> Tensor:
    """x [tokens, heads, dim] rotated; backwards where sign is -1"""
    return rotate(x, position, speed, sign).to(compute)


def pool(
    values: Tensor,
    scores: Tensor,
    ape: Tensor,
    norm: Tensor,
    starts: Tensor,
    speed: Tensor,
    eps: float,
    compute: torch.dtype,
) -> Tensor:
    """Windows of tokens, each pooled into a row.  values and scores [windows, ratio, width], starts [windows] →
    [windows, dim]; where width is 2 · dim, the window before speaks through the first half of the channels"""
    values, scores = values.float(), scores.float() + ape
    if values.shape[-1] == 2 * norm.numel():
        first = (starts == 0)[:, None, None]
        values, scores = _with_previous(values, first, 0.0), _with_previous(scores, first, -1e30)
    pooled = (torch.softmax(scores, dim=1) * values).sum(1)
    return rotate(rms(pooled, norm, eps), starts, speed).to(compute)


def _with_previous(x: Tensor, first: Tensor, missing: float) -> Tensor:
    before, current = x.chunk(2, dim=-1)
    before = F.pad(before, (0, 0, 0, 0, 1, 0))[:-1].masked_fill(first, missing)
    return torch.cat((before, current), dim=1)


def index_scores(q: Tensor, k: Tensor, gate: Tensor) -> Tensor:
    """q [rows, length, heads, dim], k [rows, windows, dim], gate [rows, length, heads] → [rows, length, windows]"""
    hits = torch.relu((q.flatten(1, 2) @ k.transpose(1, 2)).unflatten(1, q.shape[1:3]).float())
    scores: Tensor = (hits * gate.unsqueeze(-1)).sum(2)
    return scores


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
    length, heads = q.shape[1:3]
    blocks = length // ALIGN
    own = kv.unflatten(1, (blocks, ALIGN))
    near_rows = torch.cat((F.pad(own, (0, 0, 0, 0, 1, 0))[:, :-1], own), dim=2)  # [rows, blocks, 256, dim]
    documents = document.unflatten(1, (blocks, ALIGN))
    near_documents = torch.cat((F.pad(documents, (0, 0, 1, 0), value=-1)[:, :-1], documents), dim=2)
    key, query = torch.arange(2 * ALIGN, device=q.device), torch.arange(ALIGN, device=q.device)[:, None]
    band = (key > query + ALIGN - window) & (key <= query + ALIGN)
    seen = band & (documents[..., :, None] == near_documents[..., None, :])  # [rows, blocks, 128, 256]
    block_q = q.unflatten(1, (blocks, ALIGN)).flatten(2, 3)  # [rows, blocks, 128 · heads, dim]
    near = (block_q @ near_rows.transpose(-1, -2)).float().unflatten(2, (ALIGN, heads))
    near = near.masked_fill(~seen.unsqueeze(3), -1e30).flatten(1, 2)  # [rows, length, heads, 256]
    largest = torch.maximum(near.amax(-1), sinks)  # [rows, length, heads]
    far = None
    if far_rows is not None and visible is not None:
        far = (q.flatten(1, 2) @ far_rows.transpose(1, 2)).float().unflatten(1, (length, heads))
        far = far.masked_fill(~visible.unsqueeze(2), -1e30)
        largest = torch.maximum(largest, far.amax(-1))
    largest = largest.detach()
    near_weights = torch.exp(near - largest.unsqueeze(-1))
    total = near_weights.sum(-1) + torch.exp(sinks - largest)
    near_weights = near_weights.to(q.dtype).unflatten(1, (blocks, ALIGN)).flatten(2, 3)
    out = (near_weights @ near_rows).unflatten(2, (ALIGN, heads)).flatten(1, 2).float()
    if far_rows is not None and far is not None:
        far_weights = torch.exp(far - largest.unsqueeze(-1))
        total = total + far_weights.sum(-1)
        out = out + (far_weights.to(q.dtype).flatten(1, 2) @ far_rows).unflatten(1, (length, heads))
    mean: Tensor = out / total.unsqueeze(-1)
    return mean


def index_loss(q: Tensor, far_rows: Tensor, scores: Tensor, visible: Tensor, counts: Tensor) -> Tensor:
    """KL from what all heads together attend to, among the visible rows, to what the indexer would choose; the
    mean over the tokens that count.  scores [rows, length, windows]"""
    far = (q.flatten(1, 2) @ far_rows.transpose(1, 2)).float().unflatten(1, q.shape[1:3])
    target = torch.softmax(far.masked_fill(~visible.unsqueeze(2), -1e30), dim=-1).mean(2)
    learned = torch.log_softmax(scores.masked_fill(~visible, -1e30), dim=-1)
    kl = (target * (target.clamp(min=1e-9).log() - learned)).masked_fill(~visible, 0.0).sum(-1)
    return (kl * counts).sum() / counts.sum().clamp(min=1)


def head_losses(head: Tensor, hidden: Tensor, targets: Tensor) -> Tensor:
    """hidden [tokens, hidden], targets [tokens] → how surprising each target is [tokens]"""
    return F.cross_entropy(F.linear(hidden, head).float(), targets, reduction="none")


class Fused:
    """The functions as they are, until `compile` replaces them."""

    def __init__(self) -> None:
        self.mix, self.expand, self.experts = mix_streams, expand_streams, run_experts
        self.queries, self.keys, self.turn, self.pool = make_queries, make_keys, turn, pool
        self.attend, self.index_scores, self.index_loss = attend, index_scores, index_loss
        self.head_losses = head_losses

    def compile(self) -> None:
        """Worth it on a GPU only."""
        torch._dynamo.config.cache_size_limit = 32
        for name, function in list(vars(self).items()):
            setattr(self, name, torch.compile(function, dynamic=False))


FUSED = Fused()
