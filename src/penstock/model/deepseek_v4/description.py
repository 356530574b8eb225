"""Which tensors of a checkpoint make up which op."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from penstock.backend import deepseek_v4 as v4
from penstock.backend.base import Backend, DeviceWeight, Vector
from penstock.errors import ModelFormatError
from penstock.model.deepseek_v4.rope import frequencies
from penstock.storage.dense import DenseWeights
from penstock.weights.checkpoint import Checkpoint
from penstock.weights.config import AttentionKind, LayerConfig, ModelConfig


@dataclass(frozen=True)
class LayerSpec:
    """One block: two sublayers, each behind a hyper-connection."""

    attention_hyper: v4.HyperSpec
    attention: v4.AttentionSpec
    experts_hyper: v4.HyperSpec
    router: v4.RouterSpec
    experts: v4.ExpertsSpec


class Description:
    """Reads a checkpoint's tensors for the backend's ops."""

    def __init__(self, checkpoint: Checkpoint, backend: Backend, dense: DenseWeights):
        self.checkpoint, self.backend, self.dense = checkpoint, backend, dense
        config = self.config
        self._sliding_frequencies = frequencies(config, compressed=False)
        self._compressed_frequencies = frequencies(config, compressed=True)

    @property
    def config(self) -> ModelConfig:
        return self.checkpoint.config

    def weight(self, name: str) -> DeviceWeight:
        """A matrix, wherever it is kept."""
        return self.dense.weight(f"{name}.weight")

    def vector(self, name: str) -> Vector:
        """A small tensor, decoded once and kept."""
        return self.checkpoint.weight(name).decode().copy()

    # ── a layer ───────────────────────────────────────────────────────────────────────────────────────────

    def layer(self, block: str, layer: LayerConfig) -> LayerSpec:
        return LayerSpec(
            attention_hyper=self.hyper(f"{block}.hc_attn", norm=f"{block}.attn_norm"),
            attention=self.attention(block, layer),
            experts_hyper=self.hyper(f"{block}.hc_ffn", norm=f"{block}.ffn_norm"),
            router=self.router(block, layer),
            experts=self.experts(block, layer),
        )

    def hyper(self, prefix: str, norm: str) -> v4.HyperSpec:
        c = self.config
        return v4.HyperSpec(
            fn=self.weight(f"{prefix}_fn"),
            base=self.vector(f"{prefix}_base.weight"),
            scale=self.vector(f"{prefix}_scale.weight"),
            norm=self.vector(f"{norm}.weight"),
            streams=c.streams,
            iterations=c.sinkhorn_iterations,
            eps=c.hc_eps,
            rms_eps=c.rms_eps,
        )

    def attention(self, block: str, layer: LayerConfig) -> v4.AttentionSpec:
        c, sliding = self.config, layer.attention is AttentionKind.SLIDING
        indexer = None
        if layer.attention is AttentionKind.SPARSE:
            indexer = v4.IndexerSpec(
                q_b=self.weight(f"{block}.indexer.attn_q_b"),
                gates=self.weight(f"{block}.indexer.proj"),
                compressor=self.compressor(f"{block}.indexer_compressor"),
                heads=c.index_heads,
                dim=c.index_dim,
                topk=c.index_topk,
            )
        return v4.AttentionSpec(
            q_a=self.weight(f"{block}.attn_q_a"),
            q_norm=self.vector(f"{block}.attn_q_a_norm.weight"),
            q_b=self.weight(f"{block}.attn_q_b"),
            kv=self.weight(f"{block}.attn_kv"),
            kv_norm=self.vector(f"{block}.attn_kv_a_norm.weight"),
            sinks=self.vector(f"{block}.attn_sinks.weight"),
            out_a=self.weight(f"{block}.attn_output_a"),
            out_b=self.weight(f"{block}.attn_output_b"),
            compressor=None if sliding else self.compressor(f"{block}.attn_compressor"),
            indexer=indexer,
            heads=c.heads,
            dim=c.head_dim,
            window=c.window,
            groups=c.o_groups,
            frequencies=self._sliding_frequencies if sliding else self._compressed_frequencies,
            eps=c.rms_eps,
        )

    def compressor(self, prefix: str) -> v4.CompressorSpec:
        return v4.CompressorSpec(
            values=self.weight(f"{prefix}_kv"),
            scores=self.weight(f"{prefix}_gate"),
            ape=self.vector(f"{prefix}_ape.weight"),
            norm=self.vector(f"{prefix}_norm.weight"),
            frequencies=self._compressed_frequencies,
        )

    def router(self, block: str, layer: LayerConfig) -> v4.RouterSpec:
        c = self.config
        return v4.RouterSpec(
            gate=self.weight(f"{block}.ffn_gate_inp"),
            bias=None if layer.hashed else self.vector(f"{block}.exp_probs_b.bias"),
            table=self._hash_table(f"{block}.ffn_gate_tid2eid.weight") if layer.hashed else None,
            count=c.experts_used,
            normalize=c.normalize_weights,
            scale=c.routed_scale,
        )

    def experts(self, block: str, layer: LayerConfig) -> v4.ExpertsSpec:
        gate, up, down = (self.weight(f"{block}.ffn_{part}_shexp") for part in ("gate", "up", "down"))
        return v4.ExpertsSpec(
            shared=self.backend.expert(gate, up, down),
            limit=layer.swiglu_limit,
            shared_limit=layer.shared_swiglu_limit,
            hidden=self.config.hidden,
        )

    def _hash_table(self, name: str) -> NDArray[np.int64]:
        """Expert ids of every token [vocab, experts_used], checked."""
        table = self.checkpoint.weight(name).integers()
        where, experts = f"{self.checkpoint.index[name].file.path}: tensor {name}", self.config.experts
        bad = np.flatnonzero(((table < 0) | (table >= experts)).any(axis=1))
        if bad.size:
            raise ModelFormatError(
                f"{where}: token {bad[0]} maps to experts {table[bad[0]].tolist()}, expected ids below {experts}"
            )
        ordered = np.sort(table, axis=1)
        twice = np.flatnonzero((ordered[:, 1:] == ordered[:, :-1]).any(axis=1))
        if twice.size:
            raise ModelFormatError(
                f"{where}: token {twice[0]} maps to experts {table[twice[0]].tolist()}, expected distinct ids"
            )
        return table

    # ── the ends ──────────────────────────────────────────────────────────────────────────────────────────

    def head(self, prefix: str = "output_hc", norm: str = "output_norm") -> v4.HeadSpec:
        c = self.config
        return v4.HeadSpec(
            fn=self.weight(f"{prefix}_fn"),
            base=self.vector(f"{prefix}_base.weight"),
            scale=self.vector(f"{prefix}_scale.weight"),
            norm=self.vector(f"{norm}.weight"),
            streams=c.streams,
            vocab=c.vocab_size,
            eps=c.hc_eps,
            rms_eps=c.rms_eps,
        )

    def features(self, block: str) -> v4.FeaturesSpec:
        return v4.FeaturesSpec(
            self.weight(f"{block}.main_proj"), self.vector(f"{block}.main_norm.weight"), self.config.rms_eps
        )

    def watched(self, block: str) -> int:
        """How many of the trunk's last layers a DSpark module looks at."""
        return self.checkpoint.index[f"{block}.main_proj.weight"].shape[1] // self.config.hidden

    def markov(self, block: str, head: v4.HeadSpec) -> v4.MarkovSpec:
        return v4.MarkovSpec(
            previous=self.weight(f"{block}.markov_w1"),
            following=self.weight(f"{block}.markov_w2"),
            confidence=self.vector(f"{block}.conf_proj.weight"),
            head=head,
        )

    def join(self, block: str) -> v4.JoinSpec:
        c = self.config
        fused = f"{block}.eh_proj.weight" in self.checkpoint.index
        return v4.JoinSpec(
            projections=tuple(
                self.weight(f"{block}.{name}") for name in (["eh_proj"] if fused else ["e_proj", "h_proj"])
            ),
            embedding_norm=self.vector(f"{block}.enorm.weight"),
            stream_norm=self.vector(f"{block}.hnorm.weight"),
            streams=c.streams,
            hidden=c.hidden,
            eps=c.rms_eps,
        )
