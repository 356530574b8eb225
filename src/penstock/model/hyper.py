"""Hyper-connections around one sublayer, and the head that folds the streams at the end."""

from torch import Tensor

from penstock.kernels.parts import Hyper
from penstock.model.blueprint import Blueprint


class HyperMix:
    """Collapses the streams into a sublayer's normed input, spreads its output back.  streams: [rows, n, hidden]"""

    def __init__(self, blueprint: Blueprint, prefix: str, norm: str):
        c = blueprint.config
        self.ops = blueprint.ops
        self.part = Hyper(
            fn=blueprint.weight(f"{prefix}_fn.weight"),
            base=blueprint.vector(f"{prefix}_base.weight"),
            scale=blueprint.vector(f"{prefix}_scale.weight"),
            norm=blueprint.vector(f"{norm}.weight"),
            streams=c.streams,
            iterations=c.sinkhorn_iterations,
            eps=c.hc_eps,
            rms_eps=c.rms_eps,
        )

    def enter(self, streams: Tensor) -> tuple[Tensor, Tensor]:
        """The sublayer's input [rows, hidden], and how to `leave` it."""
        return self.ops.hyper_enter(streams, self.part)

    def between(self, y: Tensor, streams: Tensor, mix: Tensor) -> tuple[Tensor, Tensor]:
        """`leave` of the sublayer before this one, with its output and its mix, and then `enter`."""
        return self.ops.hyper_between(y, streams, mix, self.part)

    def leave(self, y: Tensor, streams: Tensor, mix: Tensor) -> None:
        """The sublayer's output y [rows, hidden] goes into the streams, in place."""
        self.ops.hyper_leave(y, streams, mix)


class HyperHead:
    """Folds the streams into the one vector that the output norm and head see."""

    def __init__(self, blueprint: Blueprint, prefix: str):
        self.ops, self.config = blueprint.ops, blueprint.config
        self.fn = blueprint.weight(f"{prefix}_fn.weight")
        self.base = blueprint.vector(f"{prefix}_base.weight")
        self.scale = blueprint.vector(f"{prefix}_scale.weight")

    def collapse(self, streams: Tensor) -> Tensor:
        flat = self.ops.rms_norm(streams.flatten(1), None, self.config.rms_eps)  # all streams as one vector
        pre = self.ops.hyper_gate(self.ops.linear(flat, self.fn), self.base, self.scale, self.config.hc_eps)
        return self.ops.hyper_collapse(streams, pre)
