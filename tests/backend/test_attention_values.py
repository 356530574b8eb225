"""Attention alone, against values worked out by hand."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.backend.bare_attention import bare, stored
from tests.backend.helpers import (
    KV_DTYPES,
    Weights,
    assert_close,
    assert_same_bits,
    random,
)
from tests.backend.layers import (
    USUAL,
    Block,
    attention,
    inputs,
)
from tests.spec.attention import attention as specified


def test_the_window_is_inclusive_and_the_sink_only_dilutes(tmp_path: Path) -> None:
    """With equal scores a token averages itself and the window − 1 tokens before it, and the sink's share is lost."""
    x = random(6, 16)
    x = x * torch.rsqrt(x.square().mean(1, keepdim=True) + 1e-6)
    spec = bare(Weights(tmp_path), window=3)
    found = Block(spec, "f32").sequence(x).feed(6)
    assert_close(found[4:], torch.stack((x[2:5].mean(0), x[3:6].mean(0))), 1e-6)
    found = Block(replace(spec, sinks=np.zeros(1, np.float32)), "f32").sequence(x).feed(6)
    assert_close(found[4:], torch.stack((x[2:5].sum(0) / 4, x[3:6].sum(0) / 4)), 1e-6)
    found = Block(replace(spec, window=1), "f32").sequence(x).feed(6)
    assert_close(found, x, 3e-7)


def test_large_scores_do_not_overflow(tmp_path: Path) -> None:
    spec = attention(Weights(tmp_path), USUAL, "heavy")
    spec = replace(spec, kv_norm=spec.kv_norm * 1e4)
    fed = Block(spec, "f32").sequence(inputs(USUAL, 30))
    found = fed.feed(30)
    assert_close(found, specified(fed.x.double(), spec, torch.float32).out, 1e-3)


def test_every_half_is_read_exactly(tmp_path: Path) -> None:
    """A token whose own row is zero and who sees one more gets half of that: all 65,536 patterns of both types."""
    patterns = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16)
    spec = bare(Weights(tmp_path), window=2, dim=256)
    for kv_dtype in ("f16", "bf16"):
        rows = patterns.view(KV_DTYPES[kv_dtype]).view(256, 256)
        rows = torch.where(rows.float().isfinite(), rows, torch.zeros((), dtype=rows.dtype))
        block = Block(spec, kv_dtype)
        work = []
        for row in rows:
            fed = block.sequence(torch.zeros(2, 256))
            block.pool.write(fed.slot, 0, 0, stored(row[None], kv_dtype))
            fed.position = 1
            work.append((fed, 1))
        found = torch.cat(block.run(work))
        assert torch.equal(2 * found, rows.float())


@pytest.mark.parametrize("kv_dtype", ["f16", "bf16"])
def test_halves_are_rounded_like_torch_does(tmp_path: Path, kv_dtype: str) -> None:
    """Values between two halves, ties, subnormals and overflow, through a norm that only scales."""
    spec = replace(bare(Weights(tmp_path), window=64), kv_norm=torch.logspace(-9, 5, 16).numpy())
    x = random(64, 16)
    exact, rounded = [Block(spec, dtype).sequence(x) for dtype in ("f32", kv_dtype)]
    for fed in (exact, rounded):
        fed.feed(64)
    expected = exact.state()["window"].to(KV_DTYPES[kv_dtype]).float()
    assert_same_bits(rounded.state()["window"], expected)
