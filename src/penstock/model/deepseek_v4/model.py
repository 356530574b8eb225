"""DeepSeek-V4, layer by layer.  Knows no device, and nothing of where weights come from."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from penstock.backend import deepseek_v4 as v4
from penstock.backend.base import Array, Backend, Choice, Logits
from penstock.backend.device import DeviceBackend, HostBackend
from penstock.backend.state import DRAFTS, StateLayout, StatePool, Step
from penstock.errors import OptionError
from penstock.model.base import Architecture, RoutedExperts
from penstock.model.deepseek_v4.description import Description, LayerSpec
from penstock.model.deepseek_v4.draft import DraftBlock
from penstock.model.deepseek_v4.dspark import BLOCK, DSparkModule
from penstock.model.deepseek_v4.routed import DeviceExperts, HostExperts
from penstock.model.deepseek_v4.state import DRAFT, all_series, attention_state
from penstock.storage.dense import EMBEDDING, HEAD, DenseWeights
from penstock.storage.prefetch import GUESSED_ROWS
from penstock.storage.store import ExpertStore
from penstock.weights.checkpoint import Checkpoint
from penstock.weights.config import ModelConfig


class Layer:
    """One block: two sublayers around the hyper-connection streams.  streams: [rows, n, hidden]"""

    def __init__(
        self, ops: v4.Ops, spec: LayerSpec, state: v4.AttentionState, block: str, experts: ExpertStore
    ):
        self.block, self.table = block, spec.router.table
        self.attention_hyper, self.attention = (
            ops.hyper(spec.attention_hyper),
            ops.attention(spec.attention, state),
        )
        self.experts_hyper, self.router = ops.hyper(spec.experts_hyper), ops.router(spec.router)
        self.experts, self.store = ops.experts(spec.experts), experts
        # Block and router of the next layer, if this layer's router input gives away what that will choose.
        self.following: tuple[str, v4.GuessingRouter] | None = None

    def forward(self, streams: Array, batch: Any) -> None:
        """Changes the streams in place."""
        x, mix = self.attention_hyper.enter(streams)  # x [rows, hidden]
        x, mix = self.experts_hyper.between(self.attention.run(x, batch), streams, mix)
        self.experts_hyper.leave(self.mixture(x, batch), streams, mix)

    def mixture(self, x: Array, batch: Any) -> Array:
        """A router picks a few experts per token; a shared expert sees every token."""
        ids, weights = self.router.run(x, batch)
        guess = None
        if self.following is not None and self.store.guessing and batch.rows <= GUESSED_ROWS:
            guess = partial(self._guess, *self.following, x, batch)
        with self.store.acquire(self.block, ids, guess) as lease:
            return self.experts.run(x, ids, weights, lease)

    def _guess(self, block: str, router: v4.GuessingRouter, x: Array, batch: Any) -> None:
        self.store.guess(block, router.guess(x, batch))

    def announce(self, tokens: NDArray[np.int64]) -> None:
        """Experts that follow from the tokens alone can be on their way before the layer begins."""
        if self.table is not None:
            self.store.expect(self.block, self.table[tokens])

    def fill_window(self, streams: Array, batch: Any) -> None:
        """Only fills the window, as if `forward` had run: a sliding block's window depends on its input alone."""
        x, _ = self.attention_hyper.enter(streams)
        self.attention.fill_window(x, batch)


class DeepSeekV4(Architecture):
    """Layers [first, last) of a checkpoint.  The first slice embeds, the last one has the head and the draft block;
    each hands its streams [rows, n, hidden] to the next."""

    def __init__(
        self,
        description: Description,
        ops: v4.Ops,
        layout: StateLayout,
        experts: ExpertStore,
        layers: range,
        prefetch: bool,
    ):
        checkpoint, config = description.checkpoint, description.config
        self.config, self.ops, self.dense = config, ops, description.dense
        self.sampling = description.backend.sampling
        self.layers = [
            self._layer(description, f"blk.{number}", config.layers[number], layout, experts)
            for number in layers
        ]
        if prefetch:
            for layer, following in pairwise(self.layers):
                # Its router is asked before its turn, and there is nothing to guess where a table says it.
                router = following.router
                if (
                    following.table is None
                    and self.dense.stays(following.block)
                    and isinstance(router, v4.GuessingRouter)
                ):
                    layer.following = following.block, router
        is_last = layers.stop == config.layer_count
        with_draft = is_last and checkpoint.has_mtp
        self.embedding = self.head = self.draft_block = self.dspark = None
        if layers.start == 0 or (is_last and checkpoint.has_draft):
            self.embedding = ops.embedding(self.dense.weight(EMBEDDING))
        if is_last:
            self.head = ops.head(description.head())
            self.dense.weight(HEAD)  # handed out by `dense.head`
        if with_draft:
            block = self._layer(description, DRAFT, config.mtp_layer, layout, experts)
            assert self.embedding is not None
            self.draft_block = DraftBlock(description, ops, block, self.embedding, layout, len(self.layers))
        self._blocks = range(len(self.layers))  # that a step passes through
        if is_last and checkpoint.has_dspark:
            assert self.embedding is not None
            self.dspark = self._dspark(description, layout, experts, self.embedding)
            self._blocks = range(len(self.layers) + len(self.dspark.stages))

    def _layer(
        self, description: Description, block: str, layer: Any, layout: StateLayout, experts: ExpertStore
    ) -> Layer:
        spec, state = description.layer(block, layer), attention_state(layout.series, block)
        return Layer(self.ops, spec, state, block, experts)

    def _dspark(
        self, description: Description, layout: StateLayout, experts: ExpertStore, embedding: v4.Embedding
    ) -> DSparkModule:
        blocks, config, count = description.checkpoint.draft_blocks, description.config, len(self.layers)
        if not isinstance(self.ops, v4.DSparkOps):
            raise OptionError(
                f"device is {description.backend.name!r}, which has no ops for the model's DSpark module: "
                "draft 'ngram' or 'off' leaves it out"
            )
        if (watched := description.watched(blocks[0])) > count:
            raise OptionError(
                f"the last stage has {count} layers, and the DSpark module looks at the last {watched}; "
                "layers gives it more, and draft 'ngram' or 'off' leaves the module out"
            )
        stages = []
        for block in blocks:
            spec, state = description.layer(block, config.mtp_layer), attention_state(layout.series, block)
            spec = replace(spec, attention=replace(spec.attention, block=BLOCK))
            stages.append(Layer(self.ops, spec, state, block, experts))
        return DSparkModule(description, self.ops, stages, embedding, count, count)

    # ── steps ─────────────────────────────────────────────────────────────────────────────────────────────

    def forward(
        self,
        step: Step,
        hidden: NDArray[np.float32] | None = None,
        progress: Callable[[float], None] | None = None,
    ) -> Array:
        batch = self.ops.begin(step, self._blocks)
        start = partial(self._embed, batch) if hidden is None else self.ops.received(hidden, batch)
        streams = self.ops.repeat(batch, lambda tell: self._layers(start(), batch, tell), progress)
        if self.draft_block is not None:
            self.dense.enter(DRAFT)
            self.draft_block.follow(streams, step, batch)
            self.dense.leave(DRAFT)
        if self.dspark is not None:
            self.dspark.follow(step, batch)
        return streams

    def _embed(self, batch: Any) -> Array:
        assert self.embedding is not None
        return self.ops.streams(self.embedding.run(batch), self.config.streams)

    def _layers(self, streams: Array, batch: Any, progress: v4.Progress | None) -> Array:
        # After the embedding, whose few pages would wait behind all that is read from here on.
        self.announce(batch.step.tokens)
        for number, layer in enumerate(self.layers, 1):
            self.dense.enter(layer.block)
            layer.forward(streams, batch)
            self.dense.leave(layer.block)
            if self.dspark is not None:
                self.dspark.see(number - 1, streams, batch)
            if progress is not None:
                progress(number / len(self.layers))
        return streams

    def logits(self, hidden: Array, step: Step) -> Logits:
        assert self.head is not None
        return self.head.run(hidden, step.logits, self.dense.head())

    def draft_logits(self, slot: int, position: int, token: int) -> Logits:
        assert self.draft_block is not None
        self.dense.enter(DRAFT)
        streams = self.draft_block.forward(slot, position, token)
        logits = self.draft_block.head.run(streams, np.zeros(1, np.int64), self.dense.head())
        self.dense.leave(DRAFT)
        row: Logits = np.asarray(logits)[0]
        return row

    def draft(self, slot: int, position: int, token: int, most: int, least: float) -> list[tuple[int, float]]:
        if self.dspark is not None:
            return self.dspark.draft(slot, position, token, most, least, self.dense.head())
        assert self.draft_block is not None
        self.dense.enter(DRAFT)
        output = self.dense.whole_head()
        found = None
        if output is not None:
            found = self.draft_block.guesses(slot, position, token, most, least, output)
        if found is None:
            found = self._draft_one_by_one(self.draft_block, slot, position, token, most, least)
        self.dense.leave(DRAFT)
        return found

    def _draft_one_by_one(
        self, block: DraftBlock, slot: int, position: int, token: int, most: int, least: float
    ) -> list[tuple[int, float]]:
        found: list[tuple[int, float]] = []
        streams, all_right = None, 1.0
        while len(found) < min(most, DRAFTS) and all_right >= least:
            self.announce(np.array([token]))  # hash layers' experts can come meanwhile
            if streams is None:
                streams = block.forward(slot, position, token)
            else:
                streams = block.again(slot, position + len(found), token, streams)
            logits = block.head.run(streams, np.zeros(1, np.int64), self.dense.head())
            token, chance = self._likeliest(logits[0])
            all_right *= chance
            found.append((token, chance))
        return found

    def _likeliest(self, row: Logits) -> tuple[int, float]:
        """The best token, and how likely it is: chosen where the logits are."""
        choosing = self.sampling.start(row, Choice(temperature=0.0))
        if choosing is not None:
            chosen = choosing.result()
            return max(chosen.token, 0), float(np.exp(chosen.logprob))
        token = int(row.argmax())
        return token, 1 / float(np.exp(row - row[token]).sum())

    def draft_knows(self, slot: int, position: int) -> bool:
        return self.draft_block is None or self.draft_block.knows(slot, position)

    def keep_up(self, wanted: bool) -> None:
        if self.dspark is not None:
            self.dspark.keeps_up = wanted
        if self.draft_block is not None:
            self.draft_block.keeps_up = wanted

    def settle(self, slot: int | None = None) -> None:
        if self.draft_block is not None:
            self.dense.enter(DRAFT)
            self.draft_block.settle(slot)
            self.dense.leave(DRAFT)

    def announce(self, tokens: NDArray[np.int64]) -> None:
        for layer in self.layers:
            layer.announce(tokens)

    # ── before anything is loaded ─────────────────────────────────────────────────────────────────────────

    @staticmethod
    def state_layout(
        checkpoint: Checkpoint, *, kv_dtype: str, context: int, max_rewind: int, layers: range | None = None
    ) -> StateLayout:
        config = checkpoint.config
        stretches = checkpoint.stretches if layers is None else (layers,)
        numbers = [number for stretch in stretches for number in stretch]
        is_last = stretches[-1].stop == config.layer_count
        stages = len(checkpoint.draft_blocks) if checkpoint.has_dspark and is_last else 0
        series = tuple(all_series(config, kv_dtype, numbers, checkpoint.has_mtp and is_last, stages))
        return StateLayout(series, context, max_rewind, kv_dtype, config.vocab_size)

    @staticmethod
    def step_bytes(checkpoint: Checkpoint, backend: Backend, rows: int) -> int:
        return backend.deepseek_v4().step_bytes(backend, checkpoint, rows)

    @staticmethod
    def boundary(config: ModelConfig) -> tuple[int, ...]:
        return config.streams, config.hidden

    @staticmethod
    def routed_experts(checkpoint: Checkpoint, backend: Backend, numbers: range) -> RoutedExperts:
        if isinstance(backend, DeviceBackend):
            return DeviceExperts(checkpoint, backend, numbers)
        assert isinstance(backend, HostBackend)
        return HostExperts(checkpoint, backend)

    @classmethod
    def build(
        cls,
        checkpoint: Checkpoint,
        backend: Backend,
        pool: StatePool,
        experts: ExpertStore,
        dense: DenseWeights,
        *,
        layers: range | None = None,
        prefetch: bool = False,
    ) -> Self:
        description = Description(checkpoint, backend, dense)
        ops = backend.deepseek_v4()(backend, pool)
        (layers,) = checkpoint.stretches if layers is None else (layers,)
        return cls(description, ops, pool.layout, experts, layers, prefetch)
