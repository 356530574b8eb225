"""The multi-token-prediction block: from the trunk's last streams and the next token, the token after it.

Pair i joins the trunk's streams of position i with token i + 1.  The block's own window must hold every recent
pair before it can predict, so the pairs of each fed chunk are remembered as the trunk goes along.
"""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from penstock.model.batch import Batch, Segment
from penstock.model.blueprint import Blueprint
from penstock.model.hyper import HyperHead
from penstock.model.layer import Layer
from penstock.model.state import SequenceState

if TYPE_CHECKING:
    from penstock.model.model import DeepSeekV4


class DraftBlock:
    def __init__(self, blueprint: Blueprint):
        config = blueprint.config
        self.ops, self.config, self.precision = blueprint.ops, config, blueprint.precision
        self.fused = "mtp.0.eh_proj.weight" in blueprint.checkpoint.index
        self.projections = [
            blueprint.weight(f"mtp.0.{name}.weight")
            for name in (["eh_proj"] if self.fused else ["e_proj", "h_proj"])
        ]
        self.enorm = blueprint.vector("mtp.0.enorm.weight")
        self.hnorm = blueprint.vector("mtp.0.hnorm.weight")
        self.norm = blueprint.vector("mtp.0.norm.weight")
        self.hyper_head = HyperHead(blueprint, "mtp.0.hc_head")
        self.layer = Layer(blueprint, "mtp.0", config.mtp_layer)

    def join(self, streams: Tensor, embedded: Tensor) -> Tensor:
        """Trunk streams [rows, n, hidden] and embedded next tokens [rows, hidden] → block input [rows, n, hidden]"""
        rows, n, hidden = streams.shape
        h = self.ops.rms_norm(streams, self.hnorm, self.config.rms_eps)
        e = self.ops.rms_norm(embedded, self.enorm, self.config.rms_eps)
        h, e = self.precision.linear_input(h), self.precision.linear_input(e)
        if self.fused:  # columns: embedding first, then hidden
            both = torch.cat((e.unsqueeze(1).expand(rows, n, hidden), h), dim=-1)
            return self.ops.linear(both.flatten(0, 1), self.projections[0]).view(rows, n, hidden)
        e_proj, h_proj = self.projections
        carried = self.ops.linear(h.flatten(0, 1), h_proj).view(rows, n, hidden)
        return carried + self.ops.linear(e, e_proj).unsqueeze(1)

    def remember(self, streams: Tensor, batch: Batch, model: "DeepSeekV4") -> None:
        """Adds the pairs that a fed chunk completes: (last streams before it, its first token), and so on."""
        model.dense.enter(self.layer.prefix)
        for segment in batch.segments:
            state = segment.state.draft
            assert state is not None
            own = streams[segment.rows]
            state.streams.stage(segment.position, own.flatten(1))
            if segment.position > 0:  # the pair that crosses the chunk's edge
                before = state.streams.read(segment.position - 1, segment.position).view(1, *own.shape[1:])
                own = torch.cat((before, own))
                tokens = batch.tokens[segment.rows]
            else:
                tokens = batch.tokens[segment.rows][1:]
            if tokens.numel() == 0:
                continue
            pairs = self._batch(segment.state, max(0, segment.position - 1), tokens, model)
            joined = self.join(own[: tokens.numel()], model.ops.embed(tokens, model.embedding))
            self.layer.remember(joined, pairs, [state.layer])
        model.dense.leave(self.layer.prefix)

    def forward(self, state: SequenceState, token: int, model: "DeepSeekV4") -> Tensor:
        """The block's output streams [1, n, hidden] for the newest pair.  Changes nothing that counts."""
        draft = state.draft
        assert draft is not None
        last = state.position - 1
        tokens = torch.tensor([token])
        streams = draft.streams.read(last, last + 1).view(1, self.config.streams, self.config.hidden)
        joined = self.join(streams, model.ops.embed(tokens, model.embedding))
        # The pair's own row goes to the window's next place, where the coming step will put it again.
        self.layer.forward(joined, self._batch(state, last, tokens, model), [draft.layer])
        return joined

    def _batch(self, state: SequenceState, position: int, tokens: Tensor, model: "DeepSeekV4") -> Batch:
        where = torch.arange(position, position + tokens.numel())
        segment = Segment(state, 0, tokens.numel(), position)
        plain = model.plain.rotation(self.ops, where)
        compressed = model.compressed.rotation(self.ops, where)
        return Batch(tokens, where, (segment,), plain, compressed)
