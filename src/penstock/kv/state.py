"""All that a sequence must remember between steps, layer by layer.

How many rows are live follows from the position alone, which is what makes rewinding a matter of arithmetic: a
position is enough to know which rows count.  Recent rows sit in rings with `max_rewind` spare places.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from penstock.errors import ContextLengthError, RewindError
from penstock.kv.memory import GrowingRows, Ring
from penstock.weights.config import AttentionKind, LayerConfig, ModelConfig

KV_DTYPES = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32}


@dataclass(frozen=True)
class StateLayout:
    """Everything that decides the shape of a state: two states with equal layouts can be copied into each other."""

    config: ModelConfig
    kv_dtype: torch.dtype
    context: int
    max_rewind: int
    draft: bool

    @property
    def places(self) -> int:
        """Rows that a ring has room for besides those in reach: for rewinding, and for the token under way."""
        return self.max_rewind + 1


class CompressorMemory:
    """Frontier and finished rows of one compressor."""

    def __init__(self, layout: StateLayout, layer: LayerConfig, dim: int):
        self.ratio = layer.ratio
        # Overlapping windows look back one full window beyond the current one.
        self.reach = layer.ratio * (2 if layer.attention is AttentionKind.SPARSE else 1)
        width = 2 * layout.config.compressed_width(layer, dim)  # value | score
        self.frontier = Ring(self.reach + layout.places, width, torch.float32)
        self.rows = GrowingRows(layout.context // layer.ratio, dim, layout.kv_dtype)

    def copy_from(self, other: "CompressorMemory", position: int) -> None:
        self.frontier.copy_from(other.frontier)
        self.rows = other.rows.clone(position // self.ratio)


class LayerMemory:
    """One layer's window and, in compressed layers, its compressors."""

    def __init__(self, layout: StateLayout, layer: LayerConfig):
        config = layout.config
        self.prepared: Any = None  # whatever form kernels want it in, made by them and kept here
        self.window = Ring(config.window + layout.places, config.head_dim, layout.kv_dtype)
        self.compressor: CompressorMemory | None = None
        self.indexer: CompressorMemory | None = None
        if layer.attention is not AttentionKind.SLIDING:
            self.compressor = CompressorMemory(layout, layer, config.head_dim)
        if layer.attention is AttentionKind.SPARSE:
            self.indexer = CompressorMemory(layout, layer, config.index_dim)

    @property
    def compressors(self) -> list[tuple[str, CompressorMemory]]:
        pairs = (("compressor", self.compressor), ("indexer", self.indexer))
        return [(name, memory) for name, memory in pairs if memory is not None]

    def rings(self) -> list[Ring]:
        return [self.window, *(memory.frontier for _, memory in self.compressors)]

    def copy_from(self, other: "LayerMemory", position: int) -> None:
        self.window.copy_from(other.window)
        for (_, mine), (_, theirs) in zip(self.compressors, other.compressors, strict=True):
            mine.copy_from(theirs, position)


class DraftMemory:
    """The MTP block's window, and the trunk streams that its next pair starts from."""

    def __init__(self, layout: StateLayout):
        config = layout.config
        self.layer = LayerMemory(layout, config.mtp_layer)
        self.streams = Ring(1 + layout.max_rewind, config.streams * config.hidden, torch.float32)


class SequenceMemory:
    """The state of one sequence.  `floor` is the lowest position that can still be returned to (besides 0)."""

    def __init__(self, layout: StateLayout):
        self.layout = layout
        self.position = 0
        self.floor = 0
        self.layers = [LayerMemory(layout, layer) for layer in layout.config.layers]
        self.draft = DraftMemory(layout) if layout.draft else None
        self.rings = list(self._rings())

    def layer(self, number: int) -> LayerMemory:
        return self.layers[number]

    def _rings(self) -> Iterator[Ring]:
        for layer in self.layers:
            yield from layer.rings()
        if self.draft is not None:
            yield from self.draft.layer.rings()
            yield self.draft.streams

    def check_room(self, count: int) -> None:
        if self.position + count > self.layout.context:
            raise ContextLengthError(
                f"{count:,} tokens after {self.position:,} do not fit the context of {self.layout.context:,}"
            )

    def commit(self, count: int) -> None:
        """A step over `count` tokens succeeded: what it staged becomes part of the state."""
        for ring in self.rings:
            if ring.fresh is not None:
                ring.commit()
        self.position += count
        self.floor = max(self.floor, self.position - self.layout.max_rewind)

    def discard(self) -> None:
        """A step failed: the state is as it was."""
        for ring in self.rings:
            ring.discard()

    def rewind(self, count: int) -> None:
        """Forgets the last `count` tokens."""
        target = self.position - count
        if count < 0 or target < 0:
            raise RewindError(f"cannot rewind {count:,} tokens at position {self.position:,}")
        if target < self.floor and target != 0:
            raise RewindError(
                f"cannot rewind {count:,} tokens: positions before {self.floor:,} are no longer remembered "
                f"(max_rewind is {self.layout.max_rewind})"
            )
        self.position = target
        if target == 0:
            self.floor = 0

    def fork(self) -> "SequenceMemory":
        """An independent copy."""
        copy = SequenceMemory(self.layout)
        copy.position, copy.floor = self.position, self.floor
        for mine, theirs in zip(copy.layers, self.layers, strict=True):
            mine.copy_from(theirs, self.position)
        if copy.draft is not None and self.draft is not None:
            copy.draft.layer.copy_from(self.draft.layer, self.position)
            copy.draft.streams.copy_from(self.draft.streams)
        return copy

    # ── as named tensors, for snapshots and comparison ────────────────────────────────────────────────────

    def _series(self) -> Iterator[tuple[str, Ring | GrowingRows, int, int]]:
        """Every series: name, memory, first and last live row.  Rings reach back far enough for `floor`."""
        spare = self.position - self.floor

        def recent(ring: Ring, reach: int, end: int) -> tuple[Ring, int, int]:
            return ring, max(0, end - reach - spare), end

        blocks = [(f"blk.{number}", layer) for number, layer in enumerate(self.layers)]
        for prefix, layer in blocks:
            yield f"{prefix}.window", *recent(layer.window, self.layout.config.window, self.position)
            for name, memory in layer.compressors:
                yield f"{prefix}.{name}.frontier", *recent(memory.frontier, memory.reach, self.position)
                yield f"{prefix}.{name}.rows", memory.rows, 0, self.position // memory.ratio
        if self.draft is not None:
            pairs = max(0, self.position - 1)  # pair i needs token i + 1
            yield "mtp.0.window", *recent(self.draft.layer.window, self.layout.config.window, pairs)
            yield "mtp.0.streams", *recent(self.draft.streams, 1, self.position)

    def tensors(self) -> dict[str, Tensor]:
        """The live state as named tensors in order of position.  Those that only grow are not copied: they are good
        until the state is rewound."""
        return {
            name: memory.read(first, last) if isinstance(memory, Ring) else memory.view(last)
            for name, memory, first, last in self._series()
        }

    def expected_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of `tensors()` at this position and floor."""
        return {name: (last - first, memory.storage.shape[1]) for name, memory, first, last in self._series()}

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """The reverse of `tensors`, for a new state whose position and floor have been set."""
        for name, memory, first, _ in self._series():
            if isinstance(memory, Ring):
                memory.stage(first, tensors[name])
                memory.commit()
            else:
                memory.write(0, tensors[name])
        self.floor = max(self.floor, self.position - self.layout.max_rewind)

    def live_bytes(self) -> int:
        """Bytes of state in use: the fixed rings and the rows written so far."""
        rings = sum(ring.storage.nbytes for ring in self.rings)
        rows = sum(
            memory.view(last).nbytes
            for _, memory, _, last in self._series()
            if isinstance(memory, GrowingRows)
        )
        return rings + rows
