"""Logits against Hugging Face transformers, on shapes that take every path."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock
from tests.tiny import TinyModel, make_tiny
from tests.tolerance import ORACLE

CHUNKS = [7, 13, 1, 1, 20, 64, 3, 100, 91]  # edges inside windows of 4 and of 128

# Each takes something that the default model does not: name → (length, overrides)
VARIANTS: dict[str, tuple[int, dict[str, Any]]] = {
    "published window": (300, {"sliding_window": 128, "index_topk": 16}),
    "long, many windows of 128": (
        700,
        {"compress_ratios": (4, 128, 4), "num_hash_layers": 1, "index_topk": 12},
    ),
    "no hash layers": (150, {"num_hash_layers": 0}),
    "all hash layers": (150, {"num_hash_layers": 6}),
    "hash layers in the middle": (
        150,
        {"mlp_layer_types": ["moe", "hash_moe", "moe", "hash_moe", "moe", "moe"]},
    ),
    "sliding only": (100, {"compress_ratios": (0, 0, 0)}),
    "heavy only": (300, {"compress_ratios": (128, 128)}),
    "sparse only, top-k 1": (120, {"compress_ratios": (4, 4), "index_topk": 1}),
    "other compression rates": (
        200,
        {"compress_rates": {"compressed_sparse_attention": 8, "heavily_compressed_attention": 32}},
    ),
    "odd sizes": (
        150,
        {
            "vocab_size": 317,
            "hidden_size": 100,
            "head_dim": 72,
            "qk_rope_head_dim": 24,
            "q_lora_rank": 37,
            "o_lora_rank": 19,
            "index_head_dim": 40,
            "index_n_heads": 13,
            "moe_intermediate_size": 51,
            "num_attention_heads": 6,
            "o_groups": 3,
            "n_routed_experts": 7,
            "num_experts_per_tok": 3,
            "sliding_window": 11,
        },
    ),
    "two streams, few iterations": (120, {"hc_mult": 2, "hc_sinkhorn_iters": 3, "hc_eps": 1e-4}),
    "no YaRN": (150, {"rope_parameters": None}),
    "other YaRN betas": (
        150,
        {
            "rope_parameters": {
                "rope_type": "yarn",
                "factor": 4.0,
                "original_max_position_embeddings": 256,
                "beta_fast": 8.0,
                "beta_slow": 2.0,
            }
        },
    ),
    "rms eps of the vision variant": (100, {"rms_norm_eps": 1e-20}),
    "top-1 routing": (120, {"num_experts_per_tok": 1, "routed_scaling_factor": 2.5}),
    "more groups, as in Pro": (150, {"num_attention_heads": 16, "o_groups": 8, "index_topk": 24}),
}


def _check(found: np.ndarray[Any, Any] | None, tiny: TinyModel) -> None:
    assert tiny.error(found) < ORACLE
    assert found is not None
    assert (found.argmax(-1) == tiny.logits.argmax(-1)).all()


def test_whole_prompt(tiny: TinyModel) -> None:
    engine = penstock.Engine(tiny.folder, kv_dtype="f32")
    _check(engine.session().feed(tiny.ids, logits="all"), tiny)


def test_chunks(tiny: TinyModel) -> None:
    session = penstock.Engine(tiny.folder, kv_dtype="f32").session()
    parts, at = [], 0
    for count in CHUNKS:
        parts.append(session.feed(tiny.ids[at : at + count], logits="all"))
        at += count
    assert at == len(tiny.ids)
    _check(np.concatenate([part for part in parts if part is not None]), tiny)


def test_token_by_token(tiny: TinyModel) -> None:
    session = penstock.Engine(tiny.folder, kv_dtype="f32").session()
    rows = [session.feed([token]) for token in tiny.ids]
    _check(np.stack([row for row in rows if row is not None]), tiny)


@pytest.mark.parametrize("name", VARIANTS)
def test_variants(name: str, tmp_path: Path) -> None:
    length, overrides = VARIANTS[name]
    tiny = make_tiny(tmp_path, length, **overrides)
    engine = penstock.Engine(tmp_path, kv_dtype="f32")
    _check(engine.session().feed(tiny.ids, logits="all"), tiny)
    session = engine.session()
    parts = [session.feed(tiny.ids[at : at + 41], logits="all") for at in range(0, length, 41)]
    _check(np.concatenate([part for part in parts if part is not None]), tiny)


def test_sixteen_bit_state_stays_close(tmp_path: Path) -> None:
    """With nothing discrete to flip, half-precision rows cost about 1e-4 of the range."""
    tiny = make_tiny(tmp_path, 300, num_hash_layers=6, index_topk=512)
    for kv_dtype, limit in (("f16", 1e-3), ("bf16", 8e-3)):
        found = penstock.Engine(tmp_path, kv_dtype=kv_dtype).session().feed(tiny.ids, logits="all")
        assert 0 < tiny.error(found) < limit


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_random_seeds_at_length(seed: int, tmp_path: Path) -> None:
    """Gaps between choices shrink with every token: these are twenty times the noise of scores, not a hundred."""
    tiny = make_tiny(tmp_path, 900, start=100 * seed, gap=2e-5, index_topk=40, sliding_window=64)
    _check(penstock.Engine(tmp_path, kv_dtype="f32").session().feed(tiny.ids, logits="all"), tiny)


@pytest.mark.slow
def test_four_thousand_tokens(tmp_path: Path) -> None:
    """Nothing discrete, so that only rounding remains: of the rotary angle, mostly."""
    tiny = make_tiny(tmp_path, 4096, gap=0.0, num_hash_layers=6, index_topk=2048)
    found = penstock.Engine(tmp_path, kv_dtype="f32").session().feed(tiny.ids, logits="all")
    assert tiny.error(found) < 5e-5
