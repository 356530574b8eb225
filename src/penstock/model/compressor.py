"""Compressors: every `ratio` tokens become one row that stands for them in attention (or in the index)."""

from torch import Tensor

from penstock.kernels.parts import Compression, Span
from penstock.model.blueprint import Blueprint
from penstock.model.state import CompressorState
from penstock.weights.tensor import Weight


class Compressor:
    """Pools windows of `ratio` tokens, per channel, with learned scores; then norm and rotation, as for any key.

    In sparse layers windows overlap: a row also draws on the window before, through a second series of channels
    (the first half of the projections speaks for the next window, the second half for the current one).
    """

    def __init__(self, blueprint: Blueprint, prefix: str, *, index: bool):
        self.ops, self.blueprint, self.prefix, self.index = blueprint.ops, blueprint, prefix, index
        self.weights: tuple[Weight, Weight] = (  # of values and of scores
            blueprint.weight(f"{prefix}_kv.weight"),
            blueprint.weight(f"{prefix}_gate.weight"),
        )

    def read_from(self, value_column: int, score_column: int) -> None:
        """Where the layer's projections have this compressor's values and scores."""
        blueprint = self.blueprint
        self.part = Compression(
            value_column=value_column,
            score_column=score_column,
            ape=blueprint.vector(f"{self.prefix}_ape.weight"),
            norm=blueprint.vector(f"{self.prefix}_norm.weight"),
            speed=blueprint.compressed.speed,
            eps=blueprint.config.rms_eps,
            index=self.index,
            simulate=blueprint.simulate,
        )

    def push(self, projected: Tensor, segment: Span, state: CompressorState) -> None:
        """Adds one segment's tokens; the windows they complete become rows."""
        self.ops.compress(projected, self.part, segment, state.frontier, state.rows)
