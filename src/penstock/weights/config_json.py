"""Hyper-parameters from a checkpoint folder's `config.json`.

Three spellings circulate: DeepSeek's own inference config (`dim`, `n_layers`), the config.json of the official
repository (V3-style names), and what transformers 5 writes (`layer_types`, nested `rope_parameters`).
"""

from collections.abc import Mapping
from typing import Any

from penstock.errors import ModelFormatError
from penstock.weights.config import MAX_LAYERS, AttentionKind, LayerConfig, ModelConfig
from penstock.weights.config_gguf import RATIO_KINDS

LAYER_TYPES = {
    "sliding_attention": AttentionKind.SLIDING,
    "compressed_sparse_attention": AttentionKind.SPARSE,
    "heavily_compressed_attention": AttentionKind.HEAVY,
}
DEFAULT_RATES = {"compressed_sparse_attention": 4, "heavily_compressed_attention": 128}

# our name → the names it goes by, most common first
NAMES: dict[str, tuple[str, ...]] = {
    "vocab_size": ("vocab_size",),
    "hidden": ("hidden_size", "dim"),
    "layers": ("num_hidden_layers", "n_layers"),
    "heads": ("num_attention_heads", "n_heads"),
    "head_dim": ("head_dim",),
    "rope_dim": ("qk_rope_head_dim", "rope_head_dim"),
    "q_rank": ("q_lora_rank",),
    "o_groups": ("o_groups",),
    "o_rank": ("o_lora_rank",),
    "window": ("sliding_window", "window_size"),
    "context_length": ("max_position_embeddings", "max_seq_len"),
    "rms_eps": ("rms_norm_eps", "norm_eps"),
    "compress_rope_theta": ("compress_rope_theta",),
    "experts": ("n_routed_experts", "num_local_experts"),
    "experts_used": ("num_experts_per_tok", "n_activated_experts"),
    "expert_width": ("moe_intermediate_size", "moe_inter_dim"),
    "routed_scale": ("routed_scaling_factor", "route_scale"),
    "swiglu_limit": ("swiglu_limit",),
    "index_heads": ("index_n_heads",),
    "index_dim": ("index_head_dim",),
    "index_topk": ("index_topk",),
    "streams": ("hc_mult",),
    "sinkhorn_iterations": ("hc_sinkhorn_iters",),
    "hc_eps": ("hc_eps",),
    "hash_layers": ("num_hash_layers", "n_hash_layers"),
}


class _Keys:
    def __init__(self, values: Mapping[str, Any], source: str):
        self.values, self.source = values, source

    def fail(self, name: str, expected: str) -> ModelFormatError:
        spellings = NAMES.get(name, (name,))
        for spelling in spellings:
            if spelling in self.values:
                shown = repr(self.values[spelling])[:60]
                return ModelFormatError(f"{self.source}: {spelling} is {shown}, expected {expected}")
        return ModelFormatError(f"{self.source}: {spellings[0]} is missing, expected {expected}")

    def find(self, name: str) -> Any:
        for spelling in NAMES.get(name, (name,)):
            if self.values.get(spelling) is not None:
                return self.values[spelling]
        return None

    def integer(self, name: str, default: int | None = None) -> int:
        value = self.find(name)
        if value is None and default is not None:
            return default
        if type(value) is not int or abs(value) > 1 << 62:
            raise self.fail(name, "a whole number")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        value = self.find(name)
        if value is None and default is not None:
            return default
        if isinstance(value, dict) and value.get("__float__") == "Infinity":  # how transformers writes it
            return float("inf")
        if type(value) not in (int, float):
            raise self.fail(name, "a number")
        try:
            return float(value)
        except OverflowError:
            raise self.fail(name, "a number of ordinary size") from None


def config_from_json(values: Mapping[str, Any], source: str) -> ModelConfig:
    """Hyper-parameters from the parsed `config.json`."""
    keys = _Keys(values, source)
    model_type = values.get("model_type", "deepseek_v4")
    if model_type != "deepseek_v4":
        raise ModelFormatError(f"{source}: model_type {model_type!r}, expected 'deepseek_v4'")
    if (keys.find("scoring_func") or keys.find("score_func") or "sqrtsoftplus") != "sqrtsoftplus":
        raise keys.fail("scoring_func", "'sqrtsoftplus'")
    if keys.find("norm_topk_prob") is False:
        raise keys.fail("norm_topk_prob", "true: DeepSeek-V4 always normalises expert weights")
    main, compress = _rope(keys)
    context = keys.integer("context_length", default=1 << 20)
    config = ModelConfig(
        vocab_size=keys.integer("vocab_size"),
        hidden=keys.integer("hidden"),
        heads=keys.integer("heads"),
        head_dim=keys.integer("head_dim"),
        rope_dim=_rope_dim(keys),
        q_rank=keys.integer("q_rank"),
        o_groups=keys.integer("o_groups"),
        o_rank=keys.integer("o_rank"),
        window=keys.integer("window"),
        context_length=context,
        rms_eps=keys.number("rms_eps"),
        rope_theta=main.number("rope_theta"),
        compress_rope_theta=compress.number("rope_theta"),
        yarn_factor=compress.number("factor", default=1.0),
        yarn_original_context=compress.integer("original_max_position_embeddings", default=context),
        yarn_beta_fast=compress.number("beta_fast", default=32.0),
        yarn_beta_slow=compress.number("beta_slow", default=1.0),
        experts=keys.integer("experts"),
        experts_used=keys.integer("experts_used"),
        normalize_weights=True,
        routed_scale=keys.number("routed_scale"),
        index_heads=keys.integer("index_heads"),
        index_dim=keys.integer("index_dim"),
        index_topk=keys.integer("index_topk"),
        streams=keys.integer("streams"),
        sinkhorn_iterations=keys.integer("sinkhorn_iterations"),
        hc_eps=keys.number("hc_eps"),
        bos_id=keys.integer("bos_token_id") if keys.find("bos_token_id") is not None else None,
        eos_ids=_eos(keys),
        layers=_layers(keys),
    )
    config.validate(source)
    return config


def _eos(keys: _Keys) -> tuple[int, ...]:
    value = keys.find("eos_token_id")
    ids = [] if value is None else value if isinstance(value, list) else [value]
    if not all(type(item) is int for item in ids):
        raise keys.fail("eos_token_id", "a token id or a list of them")
    return tuple(ids)


def _rope_dim(keys: _Keys) -> int:
    if keys.find("rope_dim") is not None:
        return keys.integer("rope_dim")
    factor = keys.number("partial_rotary_factor")
    if not 0 <= factor <= 1:
        raise keys.fail("partial_rotary_factor", "0 to 1")
    return int(keys.integer("head_dim") * factor)


def _rope(keys: _Keys) -> tuple[_Keys, _Keys]:
    """RoPE parameters of sliding layers and of compressed layers, under transformers' names."""
    nested = keys.find("rope_parameters")
    if (
        isinstance(nested, dict)
        and isinstance(nested.get("main"), dict)
        and isinstance(nested.get("compress"), dict)
    ):
        main, compress = dict(nested["main"]), dict(nested["compress"])
        if compress.get("attention_factor", 1) != 1:
            raise ModelFormatError(f"{keys.source}: rope_parameters.compress.attention_factor must be 1")
    else:
        scaling = keys.find("rope_scaling") or (nested if isinstance(nested, dict) else {})
        if not isinstance(scaling, dict):
            raise keys.fail("rope_scaling", "an object")
        if keys.find("rope_factor") is not None:  # DeepSeek's inference config
            scaling = {
                "type": "yarn",
                "factor": keys.find("rope_factor"),
                "original_max_position_embeddings": keys.find("original_seq_len"),
                "beta_fast": keys.find("beta_fast"),
                "beta_slow": keys.find("beta_slow"),
            }
        main = {"rope_theta": keys.number("rope_theta")}
        compress = {**scaling, "rope_theta": keys.number("compress_rope_theta")}
    kind = compress.get("rope_type", compress.get("type", "default"))
    if kind not in ("yarn", "default"):
        raise ModelFormatError(f"{keys.source}: rope type {kind!r} of compressed layers, expected 'yarn'")
    if kind == "default":
        compress = {"rope_theta": compress.get("rope_theta")}
    return _Keys(main, f"{keys.source}: rope (main)"), _Keys(compress, f"{keys.source}: rope (compress)")


def _layers(keys: _Keys) -> tuple[LayerConfig, ...]:
    count = keys.integer("layers")
    if not 1 <= count <= MAX_LAYERS:
        raise keys.fail("layers", f"1 to {MAX_LAYERS}")
    schedule = _schedule(keys, count)
    hashed = _hashed(keys, count)
    width, limit = keys.integer("expert_width"), keys.number("swiglu_limit", default=float("inf"))
    return tuple(
        LayerConfig(kind, ratio, hashed[number], width, limit, limit)
        for number, (kind, ratio) in enumerate(schedule)
    )


def _schedule(keys: _Keys, count: int) -> list[tuple[AttentionKind, int]]:
    """Attention kind and ratio of every layer, from `layer_types` or from the older `compress_ratios`."""
    if keys.find("layer_types") is None:
        ratios = _entries(keys, "compress_ratios", count, tuple(RATIO_KINDS))
        return [(RATIO_KINDS[ratio], ratio) for ratio in ratios]
    types = _entries(keys, "layer_types", count, tuple(LAYER_TYPES))
    rates = keys.find("compress_rates") or {}
    if not isinstance(rates, dict):
        raise keys.fail("compress_rates", "an object")
    rates = {**DEFAULT_RATES, **rates}
    if not all(type(rates[name]) is int and rates[name] > 0 for name in DEFAULT_RATES):
        raise keys.fail("compress_rates", "a positive whole number for each attention type")
    return [(LAYER_TYPES[name], rates.get(name, 0)) for name in types]


def _hashed(keys: _Keys, count: int) -> list[bool]:
    if keys.find("mlp_layer_types") is None:
        hashed = keys.integer("hash_layers")
        return [number < hashed for number in range(count)]
    return [name == "hash_moe" for name in _entries(keys, "mlp_layer_types", count, ("hash_moe", "moe"))]


def _entries(keys: _Keys, name: str, count: int, allowed: tuple[Any, ...]) -> list[Any]:
    """The first `count` entries of a per-layer list; what follows belongs to draft blocks."""
    entries = keys.find(name)
    if isinstance(entries, list) and len(entries) >= count:
        entries = entries[:count]
        if all(isinstance(entry, str | int) and entry in allowed for entry in entries):
            return entries
    raise keys.fail(name, f"at least {count} entries, each one of {', '.join(map(str, allowed))}")
