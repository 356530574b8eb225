"""Attention of one layer: shared key/value rows, a sliding window, and compressed rows beyond it."""

import torch
from torch import Tensor

from penstock.model.batch import Batch, Segment
from penstock.model.blueprint import Blueprint
from penstock.model.compressor import Compressor
from penstock.model.indexer import Indexer
from penstock.model.state import LayerState
from penstock.weights.config import AttentionKind, LayerConfig


class Attention:
    """One kv row per token serves all heads as key and as value; positions are turned back out of the result."""

    def __init__(self, blueprint: Blueprint, prefix: str, layer: LayerConfig):
        self.ops, self.config, self.precision = blueprint.ops, blueprint.config, blueprint.precision
        self.kind, self.ratio = layer.attention, layer.ratio
        self.q_a = blueprint.weight(f"{prefix}.attn_q_a.weight")
        self.q_norm = blueprint.vector(f"{prefix}.attn_q_a_norm.weight")
        self.q_b = blueprint.weight(f"{prefix}.attn_q_b.weight")
        self.kv = blueprint.weight(f"{prefix}.attn_kv.weight")
        self.kv_norm = blueprint.vector(f"{prefix}.attn_kv_a_norm.weight")
        self.sinks = blueprint.vector(f"{prefix}.attn_sinks.weight")
        self.out_a = blueprint.weight(f"{prefix}.attn_output_a.weight")
        self.out_b = blueprint.weight(f"{prefix}.attn_output_b.weight")
        self.compressor: Compressor | None = None
        self.indexer: Indexer | None = None
        if self.kind is not AttentionKind.SLIDING:
            self.compressor = Compressor(blueprint, f"{prefix}.attn_compressor", layer)
        if self.kind is AttentionKind.SPARSE:
            self.indexer = Indexer(blueprint, prefix, layer)

    def rotation(self, batch: Batch) -> tuple[Tensor, Tensor]:
        return batch.plain if self.kind is AttentionKind.SLIDING else batch.compressed

    def kv_rows(self, x: Tensor, batch: Batch) -> Tensor:
        """Key/value rows of every token.  [rows, head_dim]"""
        kv = self.ops.linear(self.precision.linear_input(x), self.kv)
        kv = self.ops.rms_norm(kv, self.kv_norm, self.config.rms_eps)
        return self.precision.kv_rows(self.ops.rotate(kv, *self.rotation(batch)))

    def forward(self, x: Tensor, batch: Batch, states: list[LayerState]) -> Tensor:
        """x [rows, hidden] → [rows, hidden]; states: this layer's, one per segment."""
        ops, c = self.ops, self.config
        x8 = self.precision.linear_input(x)
        qr = ops.rms_norm(ops.linear(x8, self.q_a), self.q_norm, c.rms_eps)  # [rows, q_rank]
        q = ops.linear(self.precision.linear_input(qr), self.q_b).unflatten(-1, (c.heads, c.head_dim))
        q = ops.rotate(ops.rms_norm(q, None, c.rms_eps), *self.rotation(batch))  # [rows, heads, head_dim]
        kv = self.kv_rows(x, batch)
        beyond = self._beyond_window(x, qr, batch, states)

        out = torch.empty_like(q)
        for number, (segment, state) in enumerate(zip(batch.segments, states, strict=True)):
            compressed, visible, picks = beyond[number]
            earlier = state.window.read(max(0, segment.position - c.window + 1), segment.position)
            # In-chunk rows go through the cache's rounding too, so that chunking changes nothing.
            window = torch.cat((earlier, kv[segment.rows].to(earlier.dtype)))
            state.window.stage(segment.position, kv[segment.rows])
            out[segment.rows] = ops.attend(
                q[segment.rows], window, c.window, self.sinks, compressed, visible, picks
            )
        out = ops.rotate(out, *self.rotation(batch), inverse=True)
        grouped = ops.grouped_linear(out.view(out.shape[0], c.o_groups, -1), self.out_a, c.o_groups)
        return ops.linear(self.precision.linear_input(grouped), self.out_b)

    def _beyond_window(
        self, x: Tensor, qr: Tensor, batch: Batch, states: list[LayerState]
    ) -> list[tuple[Tensor | None, Tensor | None, Tensor | None]]:
        """Per segment: compressed rows, how many of them each token sees, and the indexer's picks."""
        if self.compressor is None:
            return [(None, None, None)] * len(states)
        projected = self.compressor.project(x, batch.positions)
        if self.indexer is not None:
            index_projected = self.indexer.compressor.project(x, batch.positions)
            index_q, index_gates = self.indexer.queries(x, qr, batch)
        result: list[tuple[Tensor | None, Tensor | None, Tensor | None]] = []
        for segment, state in zip(batch.segments, states, strict=True):
            assert state.compressor is not None
            self._push(projected, segment, state)
            # The token that completes a window already sees that window's row.
            visible = (batch.positions[segment.rows] + 1) // self.ratio
            picks = None
            if self.indexer is not None:
                assert state.indexer is not None
                self.indexer.push(index_projected[segment.rows], segment, state.indexer)
                picks = self.indexer.select(
                    index_q[segment.rows], index_gates[segment.rows], visible, state.indexer
                )
            result.append((state.compressor.rows.view(int(visible.max())), visible, picks))
        return result

    def _push(self, projected: Tensor, segment: Segment, state: LayerState) -> None:
        assert self.compressor is not None
        assert state.compressor is not None
        first, rows = self.compressor.push(projected[segment.rows], segment, state.compressor)
        state.compressor.rows.write(first, self.precision.kv_rows(rows))
