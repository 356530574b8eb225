"""Mixture of experts: a router picks a few experts per token, a shared expert sees every token."""

from functools import partial
from typing import Final

import numpy as np
import torch
from torch import Tensor

from penstock.errors import ModelFormatError
from penstock.kernels.ops import Expert
from penstock.kernels.parts import Routing
from penstock.model.blueprint import Blueprint
from penstock.weights.checkpoint import Checkpoint
from penstock.weights.config import LayerConfig

GUESSED_ROWS: Final = 4  # with more, what the next layer wants is too much to read ahead


class Router:
    """Chooses experts by score, or by a fixed table of token ids; weights always come from the scores."""

    def __init__(self, blueprint: Blueprint, prefix: str, layer: LayerConfig):
        c, table, bias = blueprint.config, None, None
        if layer.hashed:
            table = _hash_table(blueprint.checkpoint, f"{prefix}.ffn_gate_tid2eid.weight")
        else:
            bias = blueprint.vector(f"{prefix}.exp_probs_b.bias")
        gate = blueprint.weight(f"{prefix}.ffn_gate_inp.weight")
        self.ops = blueprint.ops
        self.part = Routing(gate, bias, table, c.experts_used, c.normalize_weights, c.routed_scale)

    def route(self, x: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """x [rows, hidden] → expert ids and weights [rows, experts_used]"""
        return self.ops.choose_experts(x, tokens, self.part)


def _hash_table(checkpoint: Checkpoint, name: str) -> Tensor:
    """Expert ids of every token [vocab, experts_used], checked."""
    table = checkpoint.weight(name).integers()
    where = f"{checkpoint.index[name].file.path}: tensor {name}"
    bad = np.flatnonzero(((table < 0) | (table >= checkpoint.config.experts)).any(axis=1))
    if bad.size:
        raise ModelFormatError(
            f"{where}: token {bad[0]} maps to experts {table[bad[0]].tolist()}, "
            f"expected ids below {checkpoint.config.experts}"
        )
    ordered = np.sort(table, axis=1)
    twice = np.flatnonzero((ordered[:, 1:] == ordered[:, :-1]).any(axis=1))
    if twice.size:
        raise ModelFormatError(
            f"{where}: token {twice[0]} maps to experts {table[twice[0]].tolist()}, expected distinct ids"
        )
    return torch.from_numpy(table)


class MoE:
    def __init__(self, blueprint: Blueprint, prefix: str, layer: LayerConfig):
        self.layer, self.prefix = layer, prefix
        self.experts, self.precision = blueprint.experts, blueprint.precision
        self.router = Router(blueprint, prefix, layer)
        self.shared = Expert(
            gate=blueprint.weight(f"{prefix}.ffn_gate_shexp.weight"),
            up=blueprint.weight(f"{prefix}.ffn_up_shexp.weight"),
            down=blueprint.weight(f"{prefix}.ffn_down_shexp.weight"),
        )

        self._following: MoE | None = None

    def announce(self, tokens: Tensor) -> None:
        """Experts that follow from the tokens alone can be on their way before the layer begins."""
        if self.router.part.table is not None:
            self.experts.expect(self.prefix, self.router.part.table[tokens])

    def foresee(self, following: "MoE") -> None:
        """From now on what enters this layer's router says which experts the next layer will probably want."""
        if following.router.part.table is None:
            self._following = following

    def forward(self, x: Tensor, tokens: Tensor) -> Tensor:
        ids, weights = self.router.route(x, tokens)
        given, x = x, self.precision.linear_input(x)
        limit, shared_limit = self.layer.swiglu_limit, self.layer.shared_swiglu_limit
        following = None
        if self._following is not None and self.experts.guessing and x.shape[0] <= GUESSED_ROWS:
            following = partial(self._guess, self._following, given, tokens)
        return self.experts.run(self.prefix, x, ids, weights, limit, self.shared, shared_limit, following)

    def _guess(self, following: "MoE", x: Tensor, tokens: Tensor) -> None:
        self.experts.guess(following.prefix, following.router.route(x, tokens)[0])
