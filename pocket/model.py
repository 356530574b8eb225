"""DeepSeek-V4 for training: the same function as `penstock.model`, on whole padded batches and with gradients.

Parameters carry the names of the official checkpoint, so that a trained model is one `save_file` away from
`penstock quantize`.  Several documents share a row of the batch; each starts at a multiple of 128, where no
compression window straddles two of them, and sees nothing of its neighbours.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pocket.attention import Attention
from pocket.basics import Norm, linear, rms
from pocket.config import Batch, PocketConfig
from pocket.experts import MoE
from pocket.fused import FUSED


class Layer(nn.Module):
    """streams [tokens, n, hidden] → the same"""

    def __init__(self, c: PocketConfig, ratio: int, hashed: bool, seed: int):
        super().__init__()
        self.c = c
        self.attn = Attention(c, ratio)
        self.ffn = MoE(c, hashed, seed)
        self.attn_norm = Norm(c.hidden, c.rms_eps)
        self.ffn_norm = Norm(c.hidden, c.rms_eps)
        n = c.streams
        for part in ("attn", "ffn"):
            self.register_parameter(
                f"hc_{part}_fn", nn.Parameter(torch.randn((2 + n) * n, n * c.hidden) * 0.02)
            )
            # Begin near one plain residual stream: even input, output into all, streams keep to themselves.
            base = torch.cat((torch.full((n,), -1.1), torch.zeros(n), 3.0 * torch.eye(n).flatten()))
            self.register_parameter(f"hc_{part}_base", nn.Parameter(base))
            self.register_parameter(f"hc_{part}_scale", nn.Parameter(torch.full((3,), 0.5)))

    def mix(self, part: str, streams: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Input of a sublayer, normed, and how its output goes back into the streams."""
        c = self.c
        fn, base, scale = (getattr(self, f"hc_{part}_{leaf}") for leaf in ("fn", "base", "scale"))
        norm = (self.attn_norm if part == "attn" else self.ffn_norm).weight
        with torch.autocast("cuda", enabled=False):
            return FUSED.mix(streams, fn, base, scale, norm, c.sinkhorn, c.hc_eps, c.rms_eps)

    def forward(
        self, streams: Tensor, batch: Batch, sparse: bool, teach: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        x, post, comb = self.mix("attn", streams)  # [tokens, hidden]
        y, index_loss = self.attn(x, batch, sparse, teach)
        streams = FUSED.expand(y, streams, post, comb)
        x, post, comb = self.mix("ffn", streams)
        y, load = self.ffn(x, batch.tokens.flatten())
        return FUSED.expand(y, streams, post, comb), index_loss, load


class Head(nn.Module):
    """Folds the streams into one vector."""

    def __init__(self, c: PocketConfig):
        super().__init__()
        self.c = c
        self.fn = nn.Parameter(torch.randn(c.streams, c.streams * c.hidden) * 0.02)
        self.base = nn.Parameter(torch.full((c.streams,), -1.1))
        self.scale = nn.Parameter(torch.full((1,), 0.5))

    def forward(self, streams: Tensor, frozen: bool = False) -> Tensor:
        fn, base, scale = (p.detach() if frozen else p for p in (self.fn, self.base, self.scale))
        with torch.autocast("cuda", enabled=False):
            mixes = F.linear(rms(streams.flatten(-2), None, self.c.rms_eps), fn)
            pre = torch.sigmoid(mixes * scale + base) + self.c.hc_eps
            return (pre.unsqueeze(-1) * streams).sum(-2)


class Draft(nn.Module):
    """The MTP block.  It folds its streams with the trunk's head, as the one-file layout has it."""

    def __init__(self, c: PocketConfig, seed: int):
        super().__init__()
        self.c = c
        self.e_proj = linear(c.hidden, c.hidden)
        self.h_proj = linear(c.hidden, c.hidden)
        self.enorm = Norm(c.hidden, c.rms_eps)
        self.hnorm = Norm(c.hidden, c.rms_eps)
        self.norm = Norm(c.hidden, c.rms_eps)
        self.layer = Layer(c, 0, hashed=False, seed=seed)

    def forward(self, streams: Tensor, embedded: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """Trunk streams of token i and the embedding of token i + 1 → streams from which i + 2 is predicted."""
        following = self.e_proj(self.enorm(embedded)).float()  # [tokens, hidden]
        joined = self.h_proj(self.hnorm(streams)).float() + following.unsqueeze(1)
        streams, _, load = self.layer(joined, batch, False, False)
        return streams, load


class Output(NamedTuple):
    hidden: Tensor  # normed, ready for the head [rows, length, hidden]
    draft: Tensor | None
    index_loss: Tensor
    loads: Tensor  # [layers (+ draft), experts]


class Pocket(nn.Module):
    def __init__(self, c: PocketConfig):
        super().__init__()
        self.c = c
        self.embed = nn.Embedding(c.vocab, c.hidden)
        nn.init.normal_(self.embed.weight, std=1.0)
        self.layers = nn.ModuleList(
            Layer(c, ratio, number < c.hash_layers, seed=1000 + number)
            for number, ratio in enumerate(c.ratios)
        )
        self.hc_head = Head(c)
        self.norm = Norm(c.hidden, c.rms_eps)
        self.head = linear(c.hidden, c.vocab)
        self.draft = Draft(c, seed=2000)

    def forward(self, batch: Batch, sparse: bool = False, teach: bool = False, draft: bool = False) -> Output:
        rows, length = batch.tokens.shape
        streams = self.embed(batch.tokens.flatten()).unsqueeze(1).expand(-1, self.c.streams, -1).float()
        index_loss = streams.new_zeros(())
        loads = []
        for layer in self.layers:
            streams, loss, load = layer(streams, batch, sparse, teach)
            index_loss = index_loss + loss
            loads.append(load)
        hidden = self.norm(self.hc_head(streams)).unflatten(0, (rows, length))
        drafted = None
        if draft:
            # Nothing flows back into the trunk: the draft block learns to predict what is there.
            following = F.pad(batch.tokens, (0, 1))[:, 1:].flatten()
            embedded = F.embedding(following, self.embed.weight.detach())
            out, load = self.draft(streams.detach(), embedded, batch)
            drafted = self.draft.norm(self.hc_head(out, frozen=True)).unflatten(0, (rows, length))
            loads.append(load)
        return Output(hidden, drafted, index_loss, torch.stack(loads))

    def logits(self, hidden: Tensor) -> Tensor:
        logits: Tensor = self.head(hidden)
        return logits.float()
