"""Hyper-parameters from GGUF metadata (architecture `deepseek4`), and back."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from penstock.errors import ModelFormatError
from penstock.weights.config import MAX_LAYERS, AttentionKind, LayerConfig, ModelConfig

ARCHITECTURE = "deepseek4"
SQRT_SOFTPLUS = 4  # value of expert_gating_func

RATIO_KINDS = {0: AttentionKind.SLIDING, 4: AttentionKind.SPARSE, 128: AttentionKind.HEAVY}


class _Keys:
    """Typed access to metadata: any integer or float width, scalar or array, with errors that name the key."""

    def __init__(self, metadata: Mapping[str, Any], source: str):
        self.metadata, self.source = metadata, source

    def _fail(self, key: str, expected: str) -> ModelFormatError:
        full = f"{ARCHITECTURE}.{key}"
        if full not in self.metadata:
            return ModelFormatError(f"{self.source}: metadata key {full} is missing, expected {expected}")
        found = self.metadata[full]
        shown = f"an array of {len(found)}" if isinstance(found, list | np.ndarray) else repr(found)[:60]
        return ModelFormatError(f"{self.source}: metadata key {full} is {shown}, expected {expected}")

    def _get(self, key: str) -> Any:
        return self.metadata.get(f"{ARCHITECTURE}.{key}")

    def integer(self, key: str, default: int | None = None) -> int:
        value = self._get(key)
        if value is None and default is not None:
            return default
        whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
        if isinstance(value, bool) or not whole:
            raise self._fail(key, "a whole number")
        return int(value)

    def number(self, key: str, default: float | None = None) -> float:
        value = self._get(key)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._fail(key, "a number")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        value = self._get(key)
        if value is None:
            return default
        if type(value) not in (bool, int) or value not in (0, 1):
            raise self._fail(key, "true or false")
        return bool(value)

    def per_layer(self, key: str, layers: int, default: list[float] | None = None) -> list[float]:
        """A scalar for all layers, or an array with at least one value per layer (the tail is ignored)."""
        value = self._get(key)
        if value is None and default is not None:
            return default
        if isinstance(value, int | float) and not isinstance(value, bool):
            return [float(value)] * layers
        if isinstance(value, np.ndarray) and value.dtype.kind in "iuf" and len(value) >= layers:
            return [float(item) for item in value[:layers]]
        raise self._fail(key, f"a number or an array of at least {layers} numbers")


def check_architecture(metadata: Mapping[str, Any], source: str) -> None:
    """Raises unless the file says that it is a DeepSeek-V4 model."""
    found = metadata.get("general.architecture")
    if found != ARCHITECTURE:
        raise ModelFormatError(
            f"{source}: architecture {found!r}, expected {ARCHITECTURE!r} (DeepSeek-V4). Penstock runs no other."
        )


def block_count(metadata: Mapping[str, Any], source: str) -> int:
    """Blocks in the file: trunk layers, plus the draft block where it is stored as the last one."""
    count = _Keys(metadata, source).integer("block_count")
    if not 1 <= count <= MAX_LAYERS:
        raise ModelFormatError(f"{source}: {ARCHITECTURE}.block_count is {count}, expected 1 to {MAX_LAYERS}")
    return count


def config_from_gguf(metadata: Mapping[str, Any], source: str, layers: int, vocab_size: int) -> ModelConfig:
    """`layers` counts trunk layers only and `vocab_size` is the height of the embedding: both are facts of the
    tensors, which metadata of circulating files gets wrong or leaves out."""
    keys = _Keys(metadata, source)
    stated = keys.integer("vocab_size", default=vocab_size)
    if stated != vocab_size:
        raise ModelFormatError(
            f"{source}: {ARCHITECTURE}.vocab_size is {stated:,} but token_embd.weight has {vocab_size:,} rows"
        )
    gating = keys.integer("expert_gating_func", default=SQRT_SOFTPLUS)
    if gating != SQRT_SOFTPLUS:
        raise ModelFormatError(
            f"{source}: {ARCHITECTURE}.expert_gating_func is {gating}, expected {SQRT_SOFTPLUS}"
        )
    head_dim = keys.integer("attention.key_length")
    if keys.integer("attention.value_length", default=head_dim) != head_dim:
        raise ModelFormatError(f"{source}: attention.key_length and attention.value_length differ")
    if keys.integer("attention.head_count_kv", default=1) != 1:
        raise ModelFormatError(f"{source}: attention.head_count_kv must be 1: keys and values are shared")
    scaling = metadata.get(
        f"{ARCHITECTURE}.rope.scaling.type", "yarn" if keys._get("rope.scaling.factor") else "none"
    )
    if scaling not in ("yarn", "none"):
        raise ModelFormatError(f"{source}: {ARCHITECTURE}.rope.scaling.type is {scaling!r}, expected 'yarn'")
    context = keys.integer("context_length")
    config = ModelConfig(
        vocab_size=vocab_size,
        hidden=keys.integer("embedding_length"),
        heads=keys.integer("attention.head_count"),
        head_dim=head_dim,
        rope_dim=keys.integer("rope.dimension_count"),
        q_rank=keys.integer("attention.q_lora_rank"),
        o_groups=keys.integer("attention.output_group_count"),
        o_rank=keys.integer("attention.output_lora_rank"),
        window=keys.integer("attention.sliding_window"),
        context_length=context,
        rms_eps=keys.number("attention.layer_norm_rms_epsilon"),
        rope_theta=keys.number("rope.freq_base"),
        compress_rope_theta=keys.number("attention.compress_rope_freq_base"),
        yarn_factor=keys.number("rope.scaling.factor", default=1.0) if scaling == "yarn" else 1.0,
        yarn_original_context=keys.integer("rope.scaling.original_context_length", default=context),
        yarn_beta_fast=keys.number("rope.scaling.yarn_beta_fast", default=32.0),
        yarn_beta_slow=keys.number("rope.scaling.yarn_beta_slow", default=1.0),
        experts=keys.integer("expert_count"),
        experts_used=keys.integer("expert_used_count"),
        normalize_weights=keys.flag("expert_weights_norm", default=True),
        routed_scale=keys.number("expert_weights_scale"),
        index_heads=keys.integer("attention.indexer.head_count"),
        index_dim=keys.integer("attention.indexer.key_length"),
        index_topk=keys.integer("attention.indexer.top_k"),
        streams=keys.integer("hyper_connection.count"),
        sinkhorn_iterations=keys.integer("hyper_connection.sinkhorn_iterations"),
        hc_eps=keys.number("hyper_connection.epsilon"),
        bos_id=_token(metadata, "bos", source),
        eos_ids=_eos(metadata, source),
        layers=_layers(keys, layers),
    )
    config.validate(source)
    return config


def _layers(keys: _Keys, layers: int) -> tuple[LayerConfig, ...]:
    ratios = keys.per_layer("attention.compress_ratios", layers)
    widths = keys.per_layer("expert_feed_forward_length", layers)
    limits = keys.per_layer("swiglu_clamp_exp", layers)
    shared = keys.per_layer("swiglu_clamp_shexp", layers, default=limits)
    hashed = keys.integer("hash_layer_count")
    result = []
    for number in range(layers):
        if ratios[number] not in RATIO_KINDS:
            raise keys._fail("attention.compress_ratios", "0, 4 or 128 for every layer")
        kind = RATIO_KINDS[int(ratios[number])]
        result.append(
            LayerConfig(
                attention=kind,
                ratio=int(ratios[number]),
                hashed=number < hashed,
                expert_width=int(widths[number]) if abs(widths[number]) < 1e18 else 0,
                swiglu_limit=limits[number],
                shared_swiglu_limit=shared[number],
            )
        )
    return tuple(result)


def _token(metadata: Mapping[str, Any], name: str, source: str) -> int | None:
    key = f"tokenizer.ggml.{name}_token_id"
    value = metadata.get(key)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
        raise ModelFormatError(f"{source}: metadata key {key} is {value!r}, expected a token id")
    return value


def _eos(metadata: Mapping[str, Any], source: str) -> tuple[int, ...]:
    single = [_token(metadata, name, source) for name in ("eos", "eot")]
    several = metadata.get("tokenizer.ggml.eos_token_ids", ())
    if not isinstance(several, tuple) and not (
        isinstance(several, np.ndarray) and several.dtype.kind in "iu"
    ):
        raise ModelFormatError(f"{source}: metadata key tokenizer.ggml.eos_token_ids must be token ids")
    return tuple(dict.fromkeys([*(token for token in single if token is not None), *map(int, several)]))


def config_to_gguf(config: ModelConfig, blocks: int | None = None) -> dict[str, Any]:
    """Metadata that Penstock, llama.cpp and ds4 all read.  `blocks`: block_count where it is not the number
    of layers (a file whose last block is the draft block)."""
    layers = list(config.layers) + [config.mtp_layer] * ((blocks or config.layer_count) - config.layer_count)
    hashed = sum(layer.hashed for layer in layers)
    if any(layer.hashed for layer in layers[hashed:]):
        raise ModelFormatError(
            "GGUF can only say that the first layers are hash-routed, not an arbitrary set"
        )
    for layer in layers:
        if RATIO_KINDS.get(layer.ratio) is not layer.attention:
            raise ModelFormatError(
                f"GGUF knows ratios 0, 4 (sparse) and 128 (heavy), not {layer.ratio} for {layer.attention} attention"
            )
    widths = {layer.expert_width for layer in layers}
    values: dict[str, Any] = {
        "vocab_size": config.vocab_size,
        "context_length": config.context_length,
        "embedding_length": config.hidden,
        "embedding_length_out": config.hidden * config.streams,
        "block_count": len(layers),
        "attention.head_count": config.heads,
        "attention.head_count_kv": 1,
        "attention.key_length": config.head_dim,
        "attention.value_length": config.head_dim,
        "attention.q_lora_rank": config.q_rank,
        "attention.output_group_count": config.o_groups,
        "attention.output_lora_rank": config.o_rank,
        "attention.sliding_window": config.window,
        "attention.compress_ratios": np.array([layer.ratio for layer in layers], np.int32),
        "attention.compress_rope_freq_base": config.compress_rope_theta,
        "attention.layer_norm_rms_epsilon": config.rms_eps,
        "attention.indexer.head_count": config.index_heads,
        "attention.indexer.key_length": config.index_dim,
        "attention.indexer.top_k": config.index_topk,
        "rope.dimension_count": config.rope_dim,
        "rope.freq_base": config.rope_theta,
        "expert_count": config.experts,
        "expert_used_count": config.experts_used,
        "expert_shared_count": 1,
        "expert_feed_forward_length": widths.pop()
        if len(widths) == 1
        else np.array([layer.expert_width for layer in layers], np.uint32),
        "expert_gating_func": SQRT_SOFTPLUS,
        "expert_weights_norm": config.normalize_weights,
        "expert_weights_scale": config.routed_scale,
        "hash_layer_count": hashed,
        "swiglu_clamp_exp": np.array([layer.swiglu_limit for layer in layers], np.float32),
        "swiglu_clamp_shexp": np.array([layer.shared_swiglu_limit for layer in layers], np.float32),
        "hyper_connection.count": config.streams,
        "hyper_connection.sinkhorn_iterations": config.sinkhorn_iterations,
        "hyper_connection.epsilon": config.hc_eps,
    }
    if config.yarn_factor != 1.0:
        values["rope.scaling.type"] = "yarn"
        values["rope.scaling.factor"] = config.yarn_factor
        values["rope.scaling.original_context_length"] = config.yarn_original_context
        values["rope.scaling.yarn_beta_fast"] = config.yarn_beta_fast
        values["rope.scaling.yarn_beta_slow"] = config.yarn_beta_slow
    return {f"{ARCHITECTURE}.{key}": value for key, value in values.items()}
