"""Tiny models of odd shapes on the card, against transformers."""

from pathlib import Path

import numpy as np
import pytest

from penstock import Engine

pytest.importorskip("transformers.models.deepseek_v4")

from tests.tiny import TinyModel, make_tiny

LENGTH = 160


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    return make_tiny(tmp_path_factory.mktemp("tiny"), LENGTH)


@pytest.mark.parametrize("kv_dtype", ["f32", "f16"])
def test_logits_are_those_of_transformers(tiny: TinyModel, kv_dtype: str) -> None:
    with Engine(tiny.folder, device="cuda", kv_dtype=kv_dtype, context=512) as engine:
        (found,) = engine.feed([(engine.session(), tiny.ids)], logits="all")
        error = tiny.error(found)
        print(f"tiny, {kv_dtype} rows: {error:.1e} of the range")
        assert error < (2e-5 if kv_dtype == "f32" else 2e-2)


def test_one_token_at_a_time(tiny: TinyModel) -> None:
    with Engine(tiny.folder, device="cuda", kv_dtype="f32", context=512) as engine:
        session = engine.session()
        rows = [session.feed([token]) for token in tiny.ids]
    assert tiny.error(np.stack([row for row in rows if row is not None])) < 2e-5


@pytest.mark.parametrize(
    "shape",
    [
        {"head_dim": 96, "qk_rope_head_dim": 16},
        {"index_n_heads": 16, "index_head_dim": 128, "start": 1},
        {"head_dim": 512, "qk_rope_head_dim": 64, "num_attention_heads": 16, "o_groups": 4},
        {"hidden_size": 192, "moe_intermediate_size": 48, "n_routed_experts": 12, "num_experts_per_tok": 3},
    ],
)
def test_other_shapes(shape: dict[str, int], tmp_path: Path) -> None:
    tiny = make_tiny(tmp_path / "m", 80, **shape)
    for device in ("cuda", "cpu"):
        with Engine(tiny.folder, device=device, kv_dtype="f32", context=256) as engine:
            (found,) = engine.feed([(engine.session(), tiny.ids)], logits="all")
            error = tiny.error(found)
            print(f"{shape} on {device}: {error:.1e}")
            assert error < 2e-5
