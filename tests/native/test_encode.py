"""The native encoders: what they promise of errors, and that bytes depend on the input alone."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from penstock.weights import types
from penstock.weights.quants import dequantize, dequantize_fp4, dequantize_fp8, quantize
from penstock.weights.quants.encode import DECODED, encode_rows
from penstock.weights.types import WeightType
from tests.spec import encode as spec

Floats = NDArray[np.float32]

SEARCHED = [
    *(types.Q2_K, types.Q3_K, types.Q4_K, types.Q5_K, types.Q6_K),
    *(types.Q4_0, types.Q5_0, types.Q5_1, types.IQ4_NL),
]
by_type = pytest.mark.parametrize("kind", [*SEARCHED, types.IQ2_XXS], ids=lambda kind: kind.name)
by_searched_type = pytest.mark.parametrize("kind", SEARCHED, ids=lambda kind: kind.name)


def values(rows: int = 8, columns: int = 512) -> Floats:
    """Rows of several kinds: even, heavy-tailed, shifted, of one sign, sparse, tiny."""
    rng = np.random.default_rng(5)
    x = rng.standard_normal((rows, columns)).astype(np.float32) * np.float32(0.02)
    x = x if rows > 7 else np.resize(x, (8, columns))
    x[1] = rng.standard_t(3, columns) * 0.02
    x[2] += np.float32(0.05)
    x[3] = np.abs(x[3])
    x[4] *= rng.random(columns) < 0.2
    x[5] *= np.float32(2.0**-10)
    x[6, 100] = 3.0
    return x[:rows]


def importance(columns: int = 512) -> Floats:
    return np.exp(np.random.default_rng(6).standard_normal(columns)).astype(np.float32)


@by_searched_type
@pytest.mark.parametrize("weighted", [False, True])
def test_every_code_is_the_nearest_that_the_scales_allow(kind: WeightType, weighted: bool) -> None:
    x = values()
    raw = quantize(x, kind, importance() if weighted else None)
    possible = spec.levels(raw, kind)  # [weights, levels]
    flat = x.reshape(-1).astype(np.float64)
    best = np.abs(possible - flat[:, None]).min(axis=1)
    found = np.abs(dequantize(raw, kind).reshape(-1) - flat)
    assert (found <= best + 1e-6 * np.abs(flat) + 1e-12).all()


@by_searched_type
def test_the_error_is_below_that_of_the_simplest_rule(kind: WeightType) -> None:
    x = values()
    for row in (0, 1, 2, 3, 4, 5, 7):  # in 6 the rule needs scales further apart than a block can have them
        plain = ((x[row] - spec.naive(x[row], kind)) ** 2).sum()
        found = spec.weighted_error(x[row], quantize(x[row], kind), kind, np.ones(512))
        assert found < plain * 1.02, row


@by_type
def test_importance_is_what_is_minimised(kind: WeightType) -> None:
    x, w = values()[:3], importance()
    weights = w.astype(np.float64)
    knowing, blind = (spec.weighted_error(x, quantize(x, kind, each), kind, weights) for each in (w, None))
    assert knowing < blind
    assert spec.weighted_error(x, quantize(x, kind), kind, np.ones(512)) < spec.weighted_error(
        x, quantize(x, kind, w), kind, np.ones(512)
    )


def test_iq2_xxs_is_close_to_the_best_of_all_scales() -> None:
    """Every group by itself, with any scale and any even number of minus signs: no block can be better than that."""
    x, w = values(1, 256), importance(256)
    bound = 0.0
    for group, weight in zip(x.reshape(8, 32).astype(np.float64), w.reshape(8, 32), strict=True):
        scales = np.abs(group).max() / 43 * np.linspace(0.3, 1.3, 60)
        bound += min(spec.iq2_xxs_of_a_group(group, weight.astype(np.float64), scale) for scale in scales)
    found = spec.weighted_error(x, quantize(x, types.IQ2_XXS, w), types.IQ2_XXS, w.astype(np.float64))
    assert bound <= found < 1.08 * bound


@by_type
def test_a_row_depends_on_itself_alone(kind: WeightType) -> None:
    x, w = values(9), importance()
    x[8] = x[0]
    alone = np.stack([quantize(row, kind, w) for row in x])
    for threads in (1, 2, 5):
        assert np.array_equal(quantize(x, kind, w, threads), alone)
    assert np.array_equal(alone[8], alone[0])


@by_type
def test_all_instruction_sets_write_the_same_bytes(kind: WeightType) -> None:
    script = (
        "import sys, hashlib; from tests.native.test_encode import *; from penstock.weights.types import by_name\n"
        "raw = quantize(values(), by_name(sys.argv[1]), importance()); print(hashlib.sha256(raw).hexdigest())"
    )
    digests = set()
    for isa in ("scalar", ""):
        environment = os.environ | {"PENSTOCK_ISA": isa}
        done = subprocess.run(
            [sys.executable, "-c", script, kind.name],
            env=environment,
            cwd=Path(__file__).parents[2],
            capture_output=True,
            text=True,
            check=True,
        )
        digests.add(done.stdout)
    assert len(digests) == 1


@by_type
def test_nothing_and_next_to_nothing(kind: WeightType) -> None:
    zeros = np.zeros((1, 256), np.float32)
    assert not dequantize(quantize(zeros, kind), kind).any()
    tiny = np.full((1, 256), 1e-30, np.float32)
    assert np.abs(dequantize(quantize(tiny, kind), kind)).max() < 1e-6
    same = np.full((1, 256), -0.25, np.float32)
    assert np.abs(dequantize(quantize(same, kind), kind) + 0.25).max() < 0.2


@pytest.mark.parametrize("kind", DECODED, ids=lambda kind: kind.name)
def test_sources_are_decoded_like_numpy_does(kind: WeightType) -> None:
    """By way of F32, which holds them all."""
    rng = np.random.default_rng(7)
    rows, columns = 200, 320  # more than a tile of FP8 either way
    raw = rng.integers(0, 256, (rows, kind.row_bytes(columns)), dtype=np.uint8)
    scale: NDArray[np.uint8] | None = None
    if kind is types.FP8_E4M3:
        scale = rng.integers(0, 256, (2, 3), dtype=np.uint8)
        with np.errstate(all="ignore"):
            expected = dequantize_fp8(raw[130:], scale, first_row=130)
    elif kind is types.FP4_E2M1:
        scale = rng.integers(0, 256, (rows, columns // 32), dtype=np.uint8)
        expected = dequantize_fp4(raw, scale)[130:]
    else:
        expected = dequantize(raw, kind)[130:]
    out, _ = encode_rows(raw, scale, kind, columns, range(130, rows), types.F32)
    found = out.view(np.float32)
    assert np.array_equal(np.isnan(found), np.isnan(expected))
    good = ~np.isnan(expected)
    assert np.array_equal(found[good].view(np.uint32), expected[good].view(np.uint32))


def test_the_first_row_beyond_the_limit_is_named() -> None:
    x = values(40)
    x[17, 5] = np.nan
    x[30, 5] = 1e9
    _, bad = encode_rows(
        *(x.view(np.uint8), None, types.F32, 512, range(2, 40), types.Q4_K), limit=1e6, threads=3
    )
    assert bad == 17
    assert encode_rows(x.view(np.uint8), None, types.F32, 512, range(18, 40), types.Q4_K, limit=1e6)[1] == 30
    assert encode_rows(x.view(np.uint8), None, types.F32, 512, range(17), types.Q4_K, limit=1e6)[1] is None
