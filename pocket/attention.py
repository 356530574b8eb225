"""Attention of the training model: window, compressors and indexer, over whole rows at once."""

import torch
from torch import Tensor, nn

from pocket.basics import Norm, frequencies, linear
from pocket.config import Batch, PocketConfig
from pocket.fused import FUSED


class Compressor(nn.Module):
    """Rows of `ratio` tokens, pooled per channel; overlapping where the ratio is 4."""

    def __init__(self, c: PocketConfig, ratio: int, dim: int):
        super().__init__()
        self.ratio = ratio
        width = dim * (2 if ratio == 4 else 1)
        self.wkv = linear(c.hidden, width)
        self.wgate = linear(c.hidden, width)
        self.ape = nn.Parameter(torch.zeros(ratio, width))
        self.norm = Norm(dim, c.rms_eps)

    def forward(self, x: Tensor, batch: Batch, speed: Tensor, compute: torch.dtype) -> Tensor:
        """x [tokens, hidden] → [rows, length / ratio, dim]"""
        values = self.wkv(x).unflatten(0, (-1, self.ratio))  # [windows, ratio, width]
        scores = self.wgate(x).unflatten(0, (-1, self.ratio))
        starts = batch.position[:, :: self.ratio].flatten()  # [windows]
        norm = self.norm
        made = FUSED.pool(values, scores, self.ape, norm.weight, starts, speed, norm.eps, compute)
        return made.unflatten(0, (len(batch.tokens), -1))  # type: ignore[no-any-return]


class Indexer(nn.Module):
    """Scores compressed rows; learns from the attention that it will one day replace."""

    def __init__(self, c: PocketConfig):
        super().__init__()
        self.heads, self.dim = c.index_heads, c.index_dim
        self.wq_b = linear(c.q_rank, c.index_heads * c.index_dim)
        self.weights_proj = linear(c.hidden, c.index_heads)
        self.compressor = Compressor(c, 4, c.index_dim)

    def forward(self, x: Tensor, qr: Tensor, batch: Batch, speed: Tensor, compute: torch.dtype) -> Tensor:
        """→ scores [rows, length, windows].  Inputs are detached: nothing but its own loss teaches it."""
        x, qr = x.detach(), qr.detach()
        rows = (len(batch.tokens), -1)
        q = self.wq_b(qr).unflatten(-1, (self.heads, self.dim))
        q = FUSED.turn(q, batch.position.flatten(), speed, compute).unflatten(0, rows)
        k = self.compressor(x, batch, speed, compute)
        gate = self.weights_proj(x).float() * (self.heads * self.dim) ** -0.5  # [tokens, heads]
        return FUSED.index_scores(q, k, gate.unflatten(0, rows))


class Attention(nn.Module):
    def __init__(self, c: PocketConfig, ratio: int):
        super().__init__()
        self.c, self.ratio = c, ratio
        self.wq_a = linear(c.hidden, c.q_rank)
        self.q_norm = Norm(c.q_rank, c.rms_eps)
        self.wq_b = linear(c.q_rank, c.heads * c.head_dim)
        self.wkv = linear(c.hidden, c.head_dim)
        self.kv_norm = Norm(c.head_dim, c.rms_eps)
        self.attn_sink = nn.Parameter(torch.zeros(c.heads))
        self.wo_a = linear(c.heads * c.head_dim // c.o_groups, c.o_groups * c.o_rank)
        self.wo_b = linear(c.o_groups * c.o_rank, c.hidden, gain=0.5)
        if ratio:
            self.compressor = Compressor(c, ratio, c.head_dim)
        if ratio == 4:
            self.indexer = Indexer(c)
        self.speed: Tensor
        self.register_buffer("speed", frequencies(c, compressed=bool(ratio)), persistent=False)

    def forward(self, x: Tensor, batch: Batch, sparse: bool, teach: bool) -> tuple[Tensor, Tensor]:
        """x [tokens, hidden] → (output [tokens, hidden], the indexer's loss)"""
        c, speed = self.c, self.speed
        rows, position = (len(batch.tokens), -1), batch.position.flatten()
        compute = torch.bfloat16 if x.is_cuda else torch.float32
        qr = self.q_norm(self.wq_a(x))
        q = self.wq_b(qr).unflatten(-1, (c.heads, c.head_dim))
        q = FUSED.queries(q, position, speed, c.rms_eps, compute).unflatten(0, rows)
        kv = FUSED.keys(self.wkv(x), self.kv_norm.weight, position, speed, c.rms_eps, compute)

        loss = x.new_zeros(())
        far_rows = visible = None
        if self.ratio:
            far_rows = self.compressor(x, batch, speed, compute)  # [rows, windows, dim]
            visible = self._visible(batch)  # [rows, length, windows]
        if self.ratio == 4 and (teach or sparse):
            assert far_rows is not None
            assert visible is not None
            scores = self.indexer(x, qr, batch, speed, compute).masked_fill(~visible, -1e30)
            if sparse and scores.shape[-1] > c.index_topk:
                chosen = scores.topk(c.index_topk, dim=-1).indices
                visible = visible & torch.zeros_like(visible).scatter_(-1, chosen, True)
            if teach:
                counts = visible.any(-1) & (batch.weight > 0)
                loss = FUSED.index_loss(q.detach(), far_rows.detach(), scores, visible, counts)
        kv = kv.unflatten(0, rows)
        out = FUSED.attend(q, kv, batch.document, self.attn_sink, c.window, far_rows, visible)
        out = FUSED.turn(out.flatten(0, 1), position, speed, compute, -1.0)  # [tokens, heads, dim]
        groups = out.flatten(1).unflatten(-1, (c.o_groups, -1))
        w = self.wo_a.weight.to(compute).unflatten(0, (c.o_groups, c.o_rank))
        return self.wo_b(torch.einsum("tgi,goi->tgo", groups, w).flatten(1)), loss

    def _visible(self, batch: Batch) -> Tensor:
        """Row w of the same document counts from the token on that completes it.  [rows, length, windows]"""
        ends = batch.position[:, self.ratio - 1 :: self.ratio]
        documents = batch.document[:, :: self.ratio]
        same = batch.document[:, :, None] == documents[:, None, :]
        return same & (ends[:, None, :] <= batch.position[:, :, None])
