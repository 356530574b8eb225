"""Golden values of rotary frequencies, worked out by hand in float64."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from penstock.model.deepseek_v4.rope import frequencies
from tests.backend.helpers import Weights
from tests.backend.layers import Block, Sizes, attention
from tests.published import FLASH


def test_plain_frequencies() -> None:
    found = frequencies(FLASH, compressed=False)
    assert found[[8, 16, 24, 31]].tolist() == pytest.approx([0.1, 0.01, 1e-3, 1.333521432e-4], rel=1e-6)


def test_stretched_frequencies() -> None:
    golden = {
        0: 1.0,
        8: 5.0e-2,
        14: 5.286856317e-3,
        15: 3.635538584e-3,
        16: 2.265625e-3,
        17: 1.396801295e-3,
        20: 2.969777783e-4,
        24: 1.953125e-5,
        25: 5.372312671e-6,
        31: 5.680529037e-7,
    }
    found = frequencies(FLASH, compressed=True)
    assert found[list(golden)].tolist() == pytest.approx(list(golden.values()), rel=1e-6)


def test_no_yarn_means_plain_powers() -> None:
    found = frequencies(replace(FLASH, yarn_factor=1.0), compressed=True)
    assert found.tolist() == pytest.approx([160000 ** (-2 * i / 64) for i in range(32)], rel=1e-6)


def test_angles_stay_exact_at_a_million(tmp_path: Path) -> None:
    """A key's last two channels, (√2, 0) before they are turned: the fastest pair turns one radian per token."""
    weights = Weights(tmp_path)
    sizes = Sizes(hidden=2, heads=1, dim=2, half=1, groups=1)
    spec = replace(
        attention(weights, sizes, "sliding"),
        kv=weights.of(torch.eye(2)),
        kv_norm=np.ones(2, np.float32),
        frequencies=frequencies(FLASH, compressed=True)[:1],
        eps=1e-12,
    )
    block = Block(spec, "f32", context=1 << 20)
    fed = block.sequence(torch.tensor([[1.0, 0.0]]).expand(1 << 20, 2))
    fed.position = (1 << 20) - 1
    fed.feed(1)
    found = fed.state()["window"][-1] / 2**0.5
    assert found.tolist() == pytest.approx([math.cos(1_048_575), math.sin(1_048_575)], abs=1e-7)
