"""Compressors: every `ratio` tokens become one row that stands for them in attention (or in the index)."""

from penstock.kernels.parts import Compression
from penstock.model.blueprint import Blueprint
from penstock.weights.tensor import Weight


class Compressor:
    """Pools windows of `ratio` tokens, per channel, with learned scores; then norm and rotation, as for any key.

    In sparse layers windows overlap: a row also draws on the window before, through a second series of channels
    (the first half of the projections speaks for the next window, the second half for the current one).
    """

    def __init__(self, blueprint: Blueprint, prefix: str, *, index: bool):
        self.blueprint, self.prefix, self.index = blueprint, prefix, index
        self.weights: tuple[Weight, Weight] = (  # of values and of scores
            blueprint.weight(f"{prefix}_kv.weight"),
            blueprint.weight(f"{prefix}_gate.weight"),
        )

    def part(self, value_column: int, score_column: int) -> Compression:
        """For kernels, who are told where the layer's projections have this compressor's values and scores."""
        blueprint = self.blueprint
        return Compression(
            value_column=value_column,
            score_column=score_column,
            ape=blueprint.vector(f"{self.prefix}_ape.weight"),
            norm=blueprint.vector(f"{self.prefix}_norm.weight"),
            speed=blueprint.compressed.speed,
            eps=blueprint.config.rms_eps,
            index=self.index,
            simulate=blueprint.simulate,
        )
