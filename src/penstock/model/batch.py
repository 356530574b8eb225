"""A ragged batch: tokens of several sequences, side by side as rows."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from penstock.kernels.ops import SmallOps
from penstock.kernels.parts import Rotation
from penstock.model.rope import Frequencies
from penstock.model.state import SequenceState


@dataclass(frozen=True, slots=True)
class Segment:
    """One sequence's share of a batch: rows [start, stop), positions from `position` on."""

    state: SequenceState
    start: int
    stop: int
    position: int

    @property
    def rows(self) -> slice:
        return slice(self.start, self.stop)


@dataclass(frozen=True, slots=True)
class Batch:
    """Tokens and positions of all rows, who they belong to, and the rotations both layer kinds need."""

    tokens: Tensor  # [rows]
    positions: Tensor  # [rows]
    segments: tuple[Segment, ...]
    plain: Rotation  # sliding layers
    compressed: Rotation  # layers with a compressor

    @staticmethod
    def build(
        ops: SmallOps,
        work: Sequence[tuple[SequenceState, Sequence[int]]],
        plain: Frequencies,
        compressed: Frequencies,
    ) -> "Batch":
        segments: list[Segment] = []
        tokens: list[int] = []
        positions: list[int] = []
        for state, ids in work:
            start = len(tokens)
            segments.append(Segment(state, start, start + len(ids), state.position))
            tokens.extend(ids)
            positions.extend(range(state.position, state.position + len(ids)))
        where = torch.tensor(positions, dtype=torch.long)
        return Batch(
            torch.tensor(tokens, dtype=torch.long),
            where,
            tuple(segments),
            plain.rotation(ops, where),
            compressed.rotation(ops, where),
        )
