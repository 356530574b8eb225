"""Hyper-parameters from every dialect, and refusal of impossible ones."""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from penstock.errors import ModelFormatError
from penstock.weights.config import AttentionKind
from penstock.weights.config_gguf import config_from_gguf, config_to_gguf
from penstock.weights.config_json import config_from_json
from tests.published import FLASH, FLASH_RATIOS

TOKENS = {"tokenizer.ggml.bos_token_id": 0, "tokenizer.ggml.eos_token_id": 1}

# config.json as the official repository ships it
OFFICIAL: dict[str, Any] = {
    "model_type": "deepseek_v4",
    "vocab_size": 129280,
    "hidden_size": 4096,
    "num_hidden_layers": 43,
    "num_attention_heads": 64,
    "num_key_value_heads": 1,
    "head_dim": 512,
    "qk_rope_head_dim": 64,
    "q_lora_rank": 1024,
    "o_groups": 8,
    "o_lora_rank": 1024,
    "sliding_window": 128,
    "compress_ratios": [*FLASH_RATIOS, 0],
    "rope_theta": 10000,
    "compress_rope_theta": 160000,
    "rope_scaling": {
        "type": "yarn",
        "factor": 16,
        "original_max_position_embeddings": 65536,
        "beta_fast": 32,
        "beta_slow": 1,
    },
    "max_position_embeddings": 1048576,
    "rms_norm_eps": 1e-6,
    "n_routed_experts": 256,
    "num_experts_per_tok": 6,
    "n_shared_experts": 1,
    "moe_intermediate_size": 2048,
    "scoring_func": "sqrtsoftplus",
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.5,
    "num_hash_layers": 3,
    "swiglu_limit": 10.0,
    "index_n_heads": 64,
    "index_head_dim": 128,
    "index_topk": 512,
    "hc_mult": 4,
    "hc_sinkhorn_iters": 20,
    "hc_eps": 1e-6,
    "num_nextn_predict_layers": 1,
    "bos_token_id": 0,
    "eos_token_id": 1,
}
# the inference config beside it
INFERENCE: dict[str, Any] = {
    "vocab_size": 129280,
    "dim": 4096,
    "moe_inter_dim": 2048,
    "n_layers": 43,
    "n_hash_layers": 3,
    "n_heads": 64,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "n_activated_experts": 6,
    "score_func": "sqrtsoftplus",
    "route_scale": 1.5,
    "swiglu_limit": 10.0,
    "q_lora_rank": 1024,
    "head_dim": 512,
    "rope_head_dim": 64,
    "norm_eps": 1e-6,
    "o_groups": 8,
    "o_lora_rank": 1024,
    "window_size": 128,
    "compress_ratios": [*FLASH_RATIOS, 0],
    "compress_rope_theta": 160000.0,
    "original_seq_len": 65536,
    "rope_theta": 10000.0,
    "rope_factor": 16,
    "beta_fast": 32,
    "beta_slow": 1,
    "index_n_heads": 64,
    "index_head_dim": 128,
    "index_topk": 512,
    "hc_mult": 4,
    "hc_sinkhorn_iters": 20,
    "hc_eps": 1e-6,
    "bos_token_id": 0,
    "eos_token_id": [1],
}


def flash_metadata() -> dict[str, Any]:
    return {**config_to_gguf(FLASH), **TOKENS}


@pytest.mark.parametrize("values", [OFFICIAL, INFERENCE])
def test_published_json(values: dict[str, Any]) -> None:
    assert config_from_json(values, "config.json") == FLASH


def test_what_transformers_saves() -> None:
    from transformers import DeepseekV4Config

    saved = json.loads(DeepseekV4Config(**OFFICIAL).to_json_string(use_diff=False))
    assert config_from_json(saved, "config.json") == FLASH


def test_gguf_round_trip() -> None:
    config = config_from_gguf(flash_metadata(), "m.gguf", 43, 129280)
    close = replace(config, rms_eps=FLASH.rms_eps, hc_eps=FLASH.hc_eps)  # float32 in the file
    assert close == FLASH


@pytest.mark.parametrize("dialect", ["llama.cpp", "ds4", "wide"])
def test_gguf_dialects(dialect: str) -> None:
    """Every integer and float width, scalars or arrays, longer lists, keys that one writer leaves out."""
    metadata = flash_metadata()
    if dialect == "llama.cpp":
        del metadata["deepseek4.vocab_size"]
        metadata["deepseek4.attention.compress_ratios"] = np.array([*FLASH_RATIOS, 0, 0, 0], np.int32)
    elif dialect == "ds4":
        for key in (
            "swiglu_clamp_shexp",
            "embedding_length_out",
            "expert_gating_func",
            "attention.head_count_kv",
        ):
            del metadata[f"deepseek4.{key}"]
        metadata["deepseek4.attention.compress_ratios"] = np.array([*FLASH_RATIOS, 0], np.uint32)
        metadata["deepseek4.swiglu_clamp_exp"] = np.full(44, 10.0, np.float64)
        metadata["deepseek4.expert_group_count"] = 0
    else:
        metadata["deepseek4.swiglu_clamp_exp"] = 10.0
        metadata["deepseek4.swiglu_clamp_shexp"] = 10
        metadata["deepseek4.expert_feed_forward_length"] = np.full(43, 2048, np.int64)
        metadata["deepseek4.rope.freq_base"] = 10000
    config = config_from_gguf(metadata, "m.gguf", 43, 129280)
    assert replace(config, rms_eps=1e-6, hc_eps=1e-6) == FLASH


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("embedding_length", None, "deepseek4.embedding_length is missing, expected a whole number"),
        ("embedding_length", "big", "deepseek4.embedding_length is 'big'"),
        ("embedding_length", 0, "hidden is 0, expected 1 to"),
        ("embedding_length", 1 << 40, "hidden is 1099511627776"),
        ("embedding_length", -1, "hidden is -1"),
        ("embedding_length", 0.5, "expected a whole number"),
        ("embedding_length", float("nan"), "expected a whole number"),
        ("attention.layer_norm_rms_epsilon", float("nan"), "rms_eps is nan, expected a finite number"),
        ("rope.freq_base", float("inf"), "rope_theta is inf"),
        ("rope.freq_base", 0.0, "rope_theta is 0.0"),
        ("rope.dimension_count", 63, "rope_dim is 63, expected an even number"),
        ("rope.dimension_count", 1024, "rope_dim is 1024"),
        ("attention.output_group_count", 7, "o_groups is 7, expected a divisor of the 64 heads"),
        ("expert_used_count", 300, r"experts_used is 300, expected at most experts \(256\)"),
        ("attention.compress_ratios", np.array([0] * 42, np.int32), "an array of at least 43 numbers"),
        ("attention.compress_ratios", np.array([2] * 43, np.int32), "0, 4 or 128 for every layer"),
        ("attention.compress_ratios", "4", "an array of at least 43"),
        ("swiglu_clamp_exp", np.full(43, np.nan, np.float32), "layer 0: SwiGLU limit nan"),
        ("expert_gating_func", 2, "expert_gating_func is 2, expected 4"),
        ("attention.value_length", 256, "key_length and attention.value_length differ"),
        ("attention.head_count_kv", 8, "head_count_kv must be 1"),
        ("rope.scaling.type", "linear", "'linear', expected 'yarn'"),
        ("rope.scaling.factor", 0.0, "yarn_factor is 0.0"),
        ("hyper_connection.sinkhorn_iterations", 0, "sinkhorn_iterations is 0"),
        ("hyper_connection.sinkhorn_iterations", 1 << 30, "sinkhorn_iterations is"),
        ("vocab_size", 5, "vocab_size is 5 but token_embd.weight has 129,280 rows"),
        ("expert_weights_norm", np.array([1]), "true or false"),
        ("context_length", 0, "context_length is 0"),
    ],
)
def test_impossible_metadata(key: str, value: Any, message: str) -> None:
    metadata = flash_metadata()
    if value is None:
        del metadata[f"deepseek4.{key}"]
    else:
        metadata[f"deepseek4.{key}"] = value
    with pytest.raises(ModelFormatError, match=message):
        config_from_gguf(metadata, "m.gguf", 43, 129280)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("model_type", "deepseek_v41", "model_type 'deepseek_v41', expected 'deepseek_v4'"),
        ("hidden_size", None, "hidden_size is None, expected a whole number"),
        ("hidden_size", "4096", "hidden_size is '4096'"),
        ("hidden_size", True, "hidden_size is True"),
        ("num_hidden_layers", 10**9, "num_hidden_layers is 1000000000"),
        ("compress_ratios", [0, 4], "at least 43 entries"),
        ("compress_ratios", [3] * 43, "each one of 0, 4, 128"),
        ("layer_types", ["full_attention"] * 43, "layer_types"),
        ("layer_types", [[]] * 43, "layer_types"),
        ("mlp_layer_types", ["dense"] * 43, "mlp_layer_types"),
        ("scoring_func", "softmax", "scoring_func is 'softmax'"),
        ("norm_topk_prob", False, "always normalises"),
        ("rope_scaling", {"type": "longrope"}, "rope type 'longrope'"),
        ("rope_scaling", 3, "rope_scaling is 3"),
        ("eos_token_id", [1, "x"], "eos_token_id"),
        ("eos_token_id", 10**7, "outside the vocabulary"),
        ("rms_norm_eps", "tiny", "rms_norm_eps is 'tiny'"),
        ("hc_eps", 10**400, "a number of ordinary size"),
    ],
)
def test_impossible_json(key: str, value: Any, message: str) -> None:
    values = {**OFFICIAL, key: value}
    with pytest.raises(ModelFormatError, match=message):
        config_from_json(values, "config.json")


def test_other_schedules() -> None:
    values = {**OFFICIAL, "num_hidden_layers": 3, "mlp_layer_types": ["moe", "hash_moe", "moe"]}
    values["layer_types"] = [
        "heavily_compressed_attention",
        "sliding_attention",
        "compressed_sparse_attention",
    ]
    config = config_from_json(values, "config.json")
    assert [layer.attention for layer in config.layers] == [
        AttentionKind.HEAVY,
        AttentionKind.SLIDING,
        AttentionKind.SPARSE,
    ]
    assert [layer.ratio for layer in config.layers] == [128, 0, 4]
    assert [layer.hashed for layer in config.layers] == [False, True, False]
    with pytest.raises(ModelFormatError, match="first layers are hash-routed"):
        config_to_gguf(config)
