"""Mixture of experts: a router picks a few experts per token, a shared expert sees every token."""

import numpy as np
import torch
from torch import Tensor

from penstock.errors import ModelFormatError
from penstock.model.blueprint import Blueprint
from penstock.weights.checkpoint import Checkpoint
from penstock.weights.config import LayerConfig


class Router:
    """Chooses experts by score, or by a fixed table of token ids; weights always come from the scores."""

    def __init__(self, blueprint: Blueprint, prefix: str, layer: LayerConfig):
        self.ops, self.config = blueprint.ops, blueprint.config
        self.gate = blueprint.weight(f"{prefix}.ffn_gate_inp.weight")
        self.table: Tensor | None = None
        self.bias: Tensor | None = None
        if layer.hashed:
            self.table = _hash_table(blueprint.checkpoint, f"{prefix}.ffn_gate_tid2eid.weight")
        else:
            self.bias = blueprint.vector(f"{prefix}.exp_probs_b.bias")

    def route(self, x: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """x [rows, hidden] → expert ids and weights [rows, experts_used]"""
        c = self.config
        logits = self.ops.linear(x, self.gate)  # [rows, experts]
        ids = None if self.table is None else self.table[tokens]
        return self.ops.route(logits, self.bias, ids, c.experts_used, c.normalize_weights, c.routed_scale)


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
        self.ops, self.layer, self.prefix = blueprint.ops, layer, prefix
        self.experts, self.precision = blueprint.experts, blueprint.precision
        self.router = Router(blueprint, prefix, layer)
        self.shared_gate = blueprint.weight(f"{prefix}.ffn_gate_shexp.weight")
        self.shared_up = blueprint.weight(f"{prefix}.ffn_up_shexp.weight")
        self.shared_down = blueprint.weight(f"{prefix}.ffn_down_shexp.weight")

    def forward(self, x: Tensor, tokens: Tensor) -> Tensor:
        ops = self.ops
        ids, weights = self.router.route(x, tokens)
        x = self.precision.linear_input(x)
        inner = ops.swiglu(
            ops.linear(x, self.shared_gate), ops.linear(x, self.shared_up), self.layer.shared_swiglu_limit
        )
        shared = ops.linear(self.precision.linear_input(inner), self.shared_down)
        return self.experts.run(self.prefix, x, ids, weights, self.layer.swiglu_limit) + shared
