"""Tiny random checkpoints in DeepSeek's own layout, and Hugging Face models with exactly their weights.

Names, types and scales are written out here a second time, from the published files, with torch's FP8 and a
table of FP4 values: nothing is shared with the code under test.

    made = official_checkpoint(folder, official_config(), seed=0, mtp=True)
    expected = hf.logits(made.model, ids)
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import DeepseekV4Config, DeepseekV4ForCausalLM

from tests.oracles import hf

BF16, F32, I64, FP8 = "bf16", "f32", "i64", "fp8"

# Hugging Face leaf → official leaf, GGUF leaf, type in the official checkpoint
LEAVES = {
    "input_layernorm.weight": ("attn_norm.weight", "attn_norm.weight", BF16),
    "post_attention_layernorm.weight": ("ffn_norm.weight", "ffn_norm.weight", BF16),
    "self_attn.q_a_proj.weight": ("attn.wq_a.weight", "attn_q_a.weight", FP8),
    "self_attn.q_a_norm.weight": ("attn.q_norm.weight", "attn_q_a_norm.weight", BF16),
    "self_attn.q_b_proj.weight": ("attn.wq_b.weight", "attn_q_b.weight", FP8),
    "self_attn.kv_proj.weight": ("attn.wkv.weight", "attn_kv.weight", FP8),
    "self_attn.kv_norm.weight": ("attn.kv_norm.weight", "attn_kv_a_norm.weight", BF16),
    "self_attn.sinks": ("attn.attn_sink", "attn_sinks.weight", F32),
    "self_attn.o_a_proj.weight": ("attn.wo_a.weight", "attn_output_a.weight", FP8),
    "self_attn.o_b_proj.weight": ("attn.wo_b.weight", "attn_output_b.weight", FP8),
    "self_attn.compressor.kv_proj.weight": ("attn.compressor.wkv.weight", "attn_compressor_kv.weight", BF16),
    "self_attn.compressor.gate_proj.weight": (
        "attn.compressor.wgate.weight",
        "attn_compressor_gate.weight",
        BF16,
    ),
    "self_attn.compressor.position_bias": ("attn.compressor.ape", "attn_compressor_ape.weight", F32),
    "self_attn.compressor.kv_norm.weight": (
        "attn.compressor.norm.weight",
        "attn_compressor_norm.weight",
        BF16,
    ),
    "self_attn.compressor.indexer.q_b_proj.weight": (
        "attn.indexer.wq_b.weight",
        "indexer.attn_q_b.weight",
        FP8,
    ),
    "self_attn.compressor.indexer.scorer.weights_proj.weight": (
        "attn.indexer.weights_proj.weight",
        "indexer.proj.weight",
        BF16,
    ),
    "self_attn.compressor.indexer.kv_proj.weight": (
        "attn.indexer.compressor.wkv.weight",
        "indexer_compressor_kv.weight",
        BF16,
    ),
    "self_attn.compressor.indexer.gate_proj.weight": (
        "attn.indexer.compressor.wgate.weight",
        "indexer_compressor_gate.weight",
        BF16,
    ),
    "self_attn.compressor.indexer.position_bias": (
        "attn.indexer.compressor.ape",
        "indexer_compressor_ape.weight",
        F32,
    ),
    "self_attn.compressor.indexer.kv_norm.weight": (
        "attn.indexer.compressor.norm.weight",
        "indexer_compressor_norm.weight",
        BF16,
    ),
    "mlp.gate.weight": ("ffn.gate.weight", "ffn_gate_inp.weight", BF16),
    "mlp.gate.e_score_correction_bias": ("ffn.gate.bias", "exp_probs_b.bias", F32),
    "mlp.gate.tid2eid": ("ffn.gate.tid2eid", "ffn_gate_tid2eid.weight", I64),
    "mlp.shared_experts.gate_proj.weight": ("ffn.shared_experts.w1.weight", "ffn_gate_shexp.weight", FP8),
    "mlp.shared_experts.down_proj.weight": ("ffn.shared_experts.w2.weight", "ffn_down_shexp.weight", FP8),
    "mlp.shared_experts.up_proj.weight": ("ffn.shared_experts.w3.weight", "ffn_up_shexp.weight", FP8),
    **{
        f"{part}_hc.{leaf}": (f"hc_{part}_{leaf}", f"hc_{part}_{leaf}.weight", F32)
        for part in ("attn", "ffn")
        for leaf in ("fn", "base", "scale")
    },
}
ROOTS = {
    "model.embed_tokens.weight": ("embed.weight", "token_embd.weight", BF16),
    "model.norm.weight": ("norm.weight", "output_norm.weight", BF16),
    "lm_head.weight": ("head.weight", "output.weight", BF16),
    "model.hc_head.hc_fn": ("hc_head_fn", "output_hc_fn.weight", F32),
    "model.hc_head.hc_base": ("hc_head_base", "output_hc_base.weight", F32),
    "model.hc_head.hc_scale": ("hc_head_scale", "output_hc_scale.weight", F32),
}
DRAFT_EXTRAS = {
    **{f"{leaf}.weight": (f"{leaf}.weight", FP8) for leaf in ("e_proj", "h_proj")},
    **{f"{leaf}.weight": (f"{leaf}.weight", BF16) for leaf in ("enorm", "hnorm", "norm")},
    **{f"hc_head.hc_{leaf}": (f"hc_head_{leaf}", F32) for leaf in ("fn", "base", "scale")},
}

E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def official_config(**overrides: Any) -> DeepseekV4Config:
    """Widths that are whole blocks of 32 but not whole FP8 tiles of 128, so that edge tiles are clipped."""
    return hf.tiny_config(**{"hidden_size": 160, "moe_intermediate_size": 96, "q_lora_rank": 96} | overrides)


# ── encoding ──────────────────────────────────────────────────────────────────────────────────────────────


def fp8(weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """E4M3 [out, in], E8M0 scales per 128 × 128 tile, and the values that they stand for."""
    rows, columns = (-(-size // 128) for size in weight.shape)
    padded = torch.zeros(rows * 128, columns * 128)
    padded[: weight.shape[0], : weight.shape[1]] = weight
    largest = padded.view(rows, 128, columns, 128).abs().amax(dim=(1, 3))
    scale = torch.exp2(torch.ceil(torch.log2(largest / 448)))
    each = scale.repeat_interleave(128, 0).repeat_interleave(128, 1)[: weight.shape[0], : weight.shape[1]]
    stored = (weight / each).to(torch.float8_e4m3fn)
    return stored, scale.to(torch.float8_e8m0fnu), stored.float() * each


def fp4(weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """I8 pairs [out, in / 2], first value in the low nibble, E8M0 scales per 32 inputs, and the values."""
    groups = weight.reshape(len(weight), -1, 32)
    scale = torch.exp2(torch.ceil(torch.log2(groups.abs().amax(dim=2) / 6)))
    codes = (groups[..., None] / scale[..., None, None] - E2M1).abs().argmin(dim=-1)
    values = (E2M1[codes] * scale[..., None]).reshape(weight.shape)
    pairs = codes.reshape(len(weight), -1, 2)
    packed = (pairs[..., 0] | pairs[..., 1] << 4).to(torch.uint8)
    return packed.view(torch.int8), scale.to(torch.float8_e8m0fnu), values


class _Writer:
    """Collects stored tensors, and puts the values they stand for back into the model."""

    def __init__(self) -> None:
        self.stored: dict[str, Tensor] = {}

    def put(self, name: str, tensor: Tensor, kind: str) -> None:
        if kind == FP8:
            self._scaled(name, tensor, fp8(tensor.data))
        elif kind == BF16:
            self.stored[name] = tensor.data.bfloat16()
            tensor.data.copy_(self.stored[name])
        else:
            self.stored[name] = tensor.data.clone()

    def put_experts(self, prefix: str, gate_up: Tensor, down: Tensor) -> None:
        width = down.shape[2]
        for number in range(len(down)):
            parts = {"w1": gate_up[number, :width], "w3": gate_up[number, width:], "w2": down[number]}
            for part, tensor in parts.items():
                self._scaled(f"{prefix}.{number}.{part}.weight", tensor, fp4(tensor.data))

    def _scaled(self, name: str, tensor: Tensor, encoded: tuple[Tensor, Tensor, Tensor]) -> None:
        self.stored[name], self.stored[name.replace(".weight", ".scale")], values = encoded
        tensor.data.copy_(values)

    def put_layer(self, prefix: str, layer: nn.Module) -> None:
        tensors = layer.state_dict(keep_vars=True)
        experts = "mlp.experts.gate_up_proj", "mlp.experts.down_proj"
        self.put_experts(f"{prefix}.ffn.experts", *(tensors[name] for name in experts))
        for name, tensor in tensors.items():
            if name not in experts:
                self.put(f"{prefix}.{LEAVES[name][0]}", tensor, LEAVES[name][2])


# ── a checkpoint ──────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Official:
    """A written checkpoint and the models that hold the very same weights."""

    folder: Path
    model: DeepseekV4ForCausalLM
    mtp: hf.Mtp | None
    stored: dict[str, Tensor]


@torch.no_grad()
def official_checkpoint(
    folder: Path, config: DeepseekV4Config, seed: int, *, mtp: bool = False, shards: int = 3
) -> Official:
    """Writes shards, index and legacy config.json of a random model; its weights are the rounded ones."""
    model = hf.random_model(config, seed)
    draft = hf.random_mtp(config, seed + 1) if mtp else None
    writer = _Writer()
    roots = model.state_dict(keep_vars=True)
    for name, (theirs, _, kind) in ROOTS.items():
        writer.put(theirs, roots[name], kind)
    for number, layer in enumerate(model.model.layers):
        writer.put_layer(f"layers.{number}", layer)
    if draft is not None:
        writer.put_layer("mtp.0", draft.layer)
        extras = draft.state_dict(keep_vars=True)
        for name, (theirs, kind) in DRAFT_EXTRAS.items():
            writer.put(f"mtp.0.{theirs}", extras[name], kind)
    folder.mkdir(parents=True, exist_ok=True)
    write_shards(folder, writer.stored, shards)
    (folder / "config.json").write_text(json.dumps(legacy_config(config, mtp)))
    return Official(folder, model, draft, writer.stored)


def write_shards(folder: Path, tensors: dict[str, Tensor], shards: int) -> None:
    """Tensors dealt out in turn, so that weights and their scales lie in different files."""
    weight_map = {}
    for shard in range(shards):
        file = f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
        part = {name: tensors[name].contiguous() for name in list(tensors)[shard::shards]}
        save_file(part, folder / file)
        weight_map.update(dict.fromkeys(part, file))
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def legacy_config(config: DeepseekV4Config, mtp: bool) -> dict[str, Any]:
    """config.json with V3's names; compress_ratios goes on past the layers, as in the published files."""
    kinds = {"sliding_attention": 0, "compressed_sparse_attention": 4, "heavily_compressed_attention": 128}
    main, compress = (config.rope_parameters[name] for name in ("main", "compress"))
    same = (
        "vocab_size hidden_size num_hidden_layers num_attention_heads head_dim q_lora_rank o_groups o_lora_rank "
        "sliding_window index_n_heads index_head_dim index_topk n_routed_experts num_experts_per_tok "
        "moe_intermediate_size routed_scaling_factor swiglu_limit max_position_embeddings hc_mult "
        "hc_sinkhorn_iters hc_eps rms_norm_eps"
    )
    return {
        "architectures": ["DeepseekV4ForCausalLM"],
        "model_type": "deepseek_v4",
        "bos_token_id": 0,
        "eos_token_id": 1,
        **{name: getattr(config, name) for name in same.split()},
        "qk_rope_head_dim": int(config.head_dim * main.get("partial_rotary_factor", 1)),
        "num_hash_layers": config.mlp_layer_types.count("hash_moe"),
        "num_nextn_predict_layers": int(mtp),
        "n_shared_experts": 1,
        "num_key_value_heads": 1,
        "scoring_func": "sqrtsoftplus",
        "norm_topk_prob": True,
        "compress_ratios": [*(kinds[name] for name in config.layer_types), 0, 0],
        "rope_theta": main["rope_theta"],
        "compress_rope_theta": compress["rope_theta"],
        "rope_scaling": {
            "type": "yarn",
            **{
                name: compress[name]
                for name in ("factor", "original_max_position_embeddings", "beta_fast", "beta_slow")
            },
        },
        "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128], "scale_fmt": "ue8m0"},
    }


# ── reading back ──────────────────────────────────────────────────────────────────────────────────────────


def decoded(path: Path) -> dict[str, NDArray[np.float32]]:
    """Every tensor of a GGUF file as float32, by the gguf package."""
    tensors = {}
    for tensor in gguf.GGUFReader(path).tensors:
        shape = [int(size) for size in reversed(tensor.shape)]
        values = tensor.data
        if tensor.tensor_type != gguf.GGMLQuantizationType.I32:
            values = gguf.quants.dequantize(values, tensor.tensor_type)
        tensors[tensor.name] = np.asarray(values, np.float32).reshape(shape)
    return tensors


def hf_names(config: DeepseekV4Config) -> Iterator[tuple[str, str]]:
    """(Hugging Face name, GGUF name) of every tensor that may exist, experts left out."""
    yield from ((name, ours) for name, (_, ours, _) in ROOTS.items())
    for layer in range(config.num_hidden_layers):
        for leaf, (_, ours, _) in LEAVES.items():
            yield f"model.layers.{layer}.{leaf}", f"blk.{layer}.{ours}"


@torch.no_grad()
def load_back(config: DeepseekV4Config, path: Path) -> DeepseekV4ForCausalLM:
    """A Hugging Face model with the weights of a GGUF file, all of them and no others."""
    tensors = {name: torch.from_numpy(values.copy()) for name, values in decoded(path).items()}
    state = {theirs: tensors.pop(ours) for theirs, ours in hf_names(config) if ours in tensors}
    for layer in range(config.num_hidden_layers):
        gate, up, down = (
            tensors.pop(f"blk.{layer}.ffn_{part}_exps.weight") for part in ("gate", "up", "down")
        )
        state[f"model.layers.{layer}.mlp.experts.gate_up_proj"] = torch.cat((gate, up), dim=1)
        state[f"model.layers.{layer}.mlp.experts.down_proj"] = down
    assert not tensors, f"not part of the model: {sorted(tensors)}"
    model = hf.random_model(config, 0)
    model.load_state_dict(state, strict=True)
    return model
