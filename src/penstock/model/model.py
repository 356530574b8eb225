"""The whole model, or a slice of its layers with or without embedding and head."""

from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor

from penstock.experts.dense import DenseWeights
from penstock.experts.store import ExpertStore
from penstock.kernels.ops import Ops
from penstock.model.batch import Batch
from penstock.model.blueprint import Blueprint
from penstock.model.hyper import HyperHead
from penstock.model.layer import Layer
from penstock.model.mtp import DraftBlock
from penstock.model.precision import Precision
from penstock.model.rope import Frequencies
from penstock.model.state import SequenceState
from penstock.weights.checkpoint import Checkpoint


class DeepSeekV4:
    """Layers [first, last) of a checkpoint.  Streams go in and come out as [rows, n, hidden].

    A full model is `embed` → `forward` → `head`.  In a pipeline the first slice embeds, the last one has the head,
    and each hands its streams to the next.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        ops: Ops,
        experts: ExpertStore,
        dense: DenseWeights | None = None,
        *,
        first: int = 0,
        last: int | None = None,
        simulate_low_precision: bool = False,
        prefetch: bool = False,
    ):
        config = checkpoint.config
        self.config, self.ops, self.first = config, ops, first
        self.last = config.layer_count if last is None else last
        if not 0 <= first <= self.last <= config.layer_count:
            raise ValueError(f"layers [{first}, {self.last}) of a model with {config.layer_count}")
        self.plain = Frequencies(config, compressed=False)
        self.compressed = Frequencies(config, compressed=True)
        precision = Precision(config, ops, simulate_low_precision)
        self.dense = dense or DenseWeights(checkpoint)
        self.experts = experts
        blueprint = Blueprint(checkpoint, ops, experts, self.dense, precision, self.compressed)
        self.layers = [
            Layer(blueprint, f"blk.{number}", config.layers[number]) for number in range(first, self.last)
        ]
        if prefetch:
            for layer, following in pairwise(self.layers):
                if self.dense.stays(following.prefix):  # its router is asked before its turn
                    layer.moe.foresee(following.moe)
        self.embedding = blueprint.weight("token_embd.weight")
        self.hyper_head = HyperHead(blueprint, "output_hc")
        self.output_norm = blueprint.vector("output_norm.weight")
        self.output = blueprint.weight("output.weight")
        whole = checkpoint.has_mtp and self.last == config.layer_count
        self.draft = DraftBlock(blueprint) if whole else None

    def batch(self, work: Sequence[tuple[SequenceState, Sequence[int]]]) -> Batch:
        """Rows for the next tokens of several sequences."""
        return Batch.build(self.ops, work, self.plain, self.compressed)

    def embed(self, tokens: Tensor) -> Tensor:
        """tokens [rows] → streams [rows, n, hidden], all alike at first"""
        return self.ops.embed(tokens, self.embedding).unsqueeze(1).repeat(1, self.config.streams, 1)

    def forward(self, batch: Batch, streams: Tensor | None = None) -> Tensor:
        """Runs this slice's layers on the streams, in place, and stages what the sequences must remember."""
        if streams is None:
            streams = self.embed(batch.tokens)
        self.announce(batch.tokens)
        for number, layer in enumerate(self.layers, start=self.first):
            states = [segment.state.layer(number) for segment in batch.segments]
            self.dense.enter(layer.prefix)
            layer.forward(streams, batch, states)
            self.dense.leave(layer.prefix)
        if self.draft is not None:
            self.draft.remember(streams, batch, self)
        return streams

    def announce(self, tokens: Tensor) -> None:
        """These tokens come next; some layers know by them what to read."""
        for layer in self.layers:
            layer.moe.announce(tokens)

    def head(self, streams: Tensor) -> Tensor:
        """Final streams [rows, n, hidden] → logits [rows, vocab]"""
        x = self.ops.rms_norm(self.hyper_head.collapse(streams), self.output_norm, self.config.rms_eps)
        return self.dense.product(self.ops, x, self.output)

    def draft_logits(self, state: SequenceState, token: int) -> Tensor:
        """What the MTP block expects after `token`, the token about to follow the sequence → [vocab]"""
        assert self.draft is not None
        self.dense.enter(self.draft.layer.prefix)
        folded = self.draft.hyper_head.collapse(self.draft.forward(state, token, self))
        self.dense.leave(self.draft.layer.prefix)
        x = self.ops.rms_norm(folded, self.draft.norm, self.config.rms_eps)
        return self.dense.product(self.ops, x, self.output)[0]
