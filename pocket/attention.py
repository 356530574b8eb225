"""Attention of the training model: window, compressors and indexer, over whole rows at once."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pocket.basics import Norm, frequencies, linear, rms, rotate
from pocket.config import Batch, PocketConfig
from pocket.fused import FUSED


class Compressor(nn.Module):
    """Rows of `ratio` tokens, pooled per channel; overlapping where the ratio is 4."""

    def __init__(self, c: PocketConfig, ratio: int, dim: int):
        super().__init__()
        self.ratio, self.overlap = ratio, ratio == 4
        width = dim * (2 if self.overlap else 1)
        self.wkv = linear(c.hidden, width)
        self.wgate = linear(c.hidden, width)
        self.ape = nn.Parameter(torch.zeros(ratio, width))
        self.norm = Norm(dim, c.rms_eps)

    def forward(self, x: Tensor, batch: Batch, speed: Tensor) -> Tensor:
        """x [rows, length, hidden] → [rows, length / ratio, dim]"""
        values = self.wkv(x).float().unflatten(1, (-1, self.ratio))  # [rows, windows, ratio, width]
        scores = self.wgate(x).float().unflatten(1, (-1, self.ratio)) + self.ape
        starts = batch.position[:, :: self.ratio]  # [rows, windows]
        if self.overlap:
            first = (starts == 0)[..., None, None]
            values = self._with_previous(values, first, 0.0)
            scores = self._with_previous(scores, first, -1e30)
        pooled = (torch.softmax(scores, dim=2) * values).sum(2)
        return rotate(self.norm(pooled), starts, speed)

    def _with_previous(self, x: Tensor, first: Tensor, missing: float) -> Tensor:
        """Candidates of each window: the one before speaks through the first half of the channels."""
        before, current = x.chunk(2, dim=-1)
        before = F.pad(before, (0, 0, 0, 0, 1, 0))[:, :-1].masked_fill(first, missing)
        return torch.cat((before, current), dim=2)


class Indexer(nn.Module):
    """Scores compressed rows; learns from the attention that it will one day replace."""

    def __init__(self, c: PocketConfig):
        super().__init__()
        self.heads, self.dim = c.index_heads, c.index_dim
        self.wq_b = linear(c.q_rank, c.index_heads * c.index_dim)
        self.weights_proj = linear(c.hidden, c.index_heads)
        self.compressor = Compressor(c, 4, c.index_dim)

    def forward(self, x: Tensor, qr: Tensor, batch: Batch, speed: Tensor) -> Tensor:
        """→ scores [rows, length, windows].  Inputs are detached: nothing but its own loss teaches it."""
        x, qr = x.detach(), qr.detach()
        q = rotate(self.wq_b(qr).unflatten(-1, (self.heads, self.dim)), batch.position, speed)
        k = self.compressor(x, batch, speed)
        gate = self.weights_proj(x).float() * (self.heads * self.dim) ** -0.5  # [rows, length, heads]
        total: Tensor | None = None
        kt = k.to(torch.bfloat16 if x.is_cuda else k.dtype).transpose(1, 2)
        for head in range(self.heads):
            hit = torch.relu(q[:, :, head].to(kt.dtype) @ kt).float()
            part = gate[:, :, head, None] * hit
            total = part if total is None else total + part
        assert total is not None
        return total


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
        """x [rows, length, hidden] → (output, the indexer's loss)"""
        c, speed = self.c, self.speed
        rows, length, _ = x.shape
        compute = torch.bfloat16 if x.is_cuda else torch.float32
        qr = self.q_norm(self.wq_a(x))
        q = rms(self.wq_b(qr).unflatten(-1, (c.heads, c.head_dim)), None, c.rms_eps)
        q = (rotate(q, batch.position, speed) * c.head_dim**-0.5).to(compute)  # [rows, length, heads, dim]
        kv = rotate(self.kv_norm(self.wkv(x)), batch.position, speed).to(compute)

        loss = x.new_zeros(())
        far_rows = visible = None
        if self.ratio:
            far_rows = self.compressor(x, batch, speed).to(compute)  # [rows, windows, dim]
            visible = self._visible(batch)  # [rows, length, windows]
        if self.ratio == 4 and (teach or sparse):
            assert far_rows is not None
            assert visible is not None
            scores = self.indexer(x, qr, batch, speed).masked_fill(~visible, -1e30)
            if sparse and scores.shape[-1] > c.index_topk:
                chosen = scores.topk(c.index_topk, dim=-1).indices
                visible = visible & torch.zeros_like(visible).scatter_(-1, chosen, True)
            counts = visible.any(-1) & (batch.weight > 0)
            loss = FUSED.index_loss(q.detach(), far_rows.detach(), scores, visible, counts)
        out = FUSED.attend(q, kv, batch.document, self.attn_sink, c.window, far_rows, visible)
        out = rotate(out, batch.position, speed, sign=-1.0)
        groups = out.reshape(rows, length, c.o_groups, -1).to(compute)
        w = self.wo_a.weight.to(compute).unflatten(0, (c.o_groups, c.o_rank))
        return self.wo_b(torch.einsum("blgi,goi->blgo", groups, w).flatten(2)), loss

    def _visible(self, batch: Batch) -> Tensor:
        """Row w of the same document counts from the token on that completes it.  [rows, length, windows]"""
        ends = batch.position[:, self.ratio - 1 :: self.ratio]
        documents = batch.document[:, :: self.ratio]
        same = batch.document[:, :, None] == documents[:, None, :]
        return same & (ends[:, None, :] <= batch.position[:, :, None])
