"""Hyper-connections around one sublayer, and the head that folds the streams at the end."""

from torch import Tensor

from penstock.kernels.ops import Mix
from penstock.model.blueprint import Blueprint


class HyperMix:
    """Collapses the streams into a sublayer's input and spreads its output back.  streams: [rows, n, hidden]"""

    def __init__(self, blueprint: Blueprint, prefix: str):
        self.ops, self.config = blueprint.ops, blueprint.config
        self.fn = blueprint.weight(f"{prefix}_fn.weight")
        self.base = blueprint.vector(f"{prefix}_base.weight")
        self.scale = blueprint.vector(f"{prefix}_scale.weight")

    def collapse(self, streams: Tensor) -> tuple[Tensor, Mix]:
        c = self.config
        flat = self.ops.rms_norm(streams.flatten(1), None, c.rms_eps)  # all streams as one vector
        mix = self.ops.hyper_mix(
            self.ops.linear(flat, self.fn), self.base, self.scale, c.streams, c.sinkhorn_iterations, c.hc_eps
        )
        return self.ops.hyper_collapse(streams, mix.pre), mix

    def expand(self, y: Tensor, streams: Tensor, mix: Mix) -> Tensor:
        return self.ops.hyper_expand(y, streams, mix)


class HyperHead:
    """Folds the streams into the one vector that the output norm and head see."""

    def __init__(self, blueprint: Blueprint, prefix: str):
        self.ops, self.config = blueprint.ops, blueprint.config
        self.fn = blueprint.weight(f"{prefix}_fn.weight")
        self.base = blueprint.vector(f"{prefix}_base.weight")
        self.scale = blueprint.vector(f"{prefix}_scale.weight")

    def collapse(self, streams: Tensor) -> Tensor:
        flat = self.ops.rms_norm(streams.flatten(1), None, self.config.rms_eps)
        pre = self.ops.hyper_gate(self.ops.linear(flat, self.fn), self.base, self.scale, self.config.hc_eps)
        return self.ops.hyper_collapse(streams, pre)
