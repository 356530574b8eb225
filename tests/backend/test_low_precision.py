"""Rounding where DeepSeek's own inference code rounds: the round trips themselves, and the ops that take them."""

from pathlib import Path

import pytest
import torch

from penstock.weights import types
from tests.backend.helpers import KV_DTYPES, Device, Weights, array, assert_close, assert_same_bits, random
from tests.backend.layers import KINDS, LARGE, Block, attention, inputs, join
from tests.backend.test_experts import HIDDEN, Layer, routing
from tests.spec import head as head_spec
from tests.spec.attention import attention as specified
from tests.spec.low_precision import hadamard, round_fp4, round_fp8


def test_fp8_round_trip_golden() -> None:
    x = torch.zeros(1, 64)
    x[0, :5] = torch.tensor([0.3, 1.06, 17.0, 19.0, 448.0])
    assert round_fp8(x.double(), 64)[0, :5].tolist() == [0.3125, 1.0, 16.0, 20.0, 448.0]


def test_fp4_takes_ties_to_the_even_code() -> None:
    x = torch.tensor([[6.0, 0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, -5.0]])
    assert round_fp4(x.double(), 32)[0].tolist() == [6.0, 0.0, 1.0, 1.0, 2.0, 2.0, 4.0, 4.0, -4.0]


def test_scales_are_exact_powers_of_two() -> None:
    """A group whose largest value is exactly 448 · 2^k must not get a scale one step too large."""
    x = torch.full((1, 64), 448.0 * 2**-7).double()
    assert torch.equal(round_fp8(x, 64), x)


def test_hadamard_is_orthogonal_and_symmetric() -> None:
    x = random(5, 128).double()
    assert torch.allclose(hadamard(hadamard(x)), x, atol=1e-12)
    matrix = hadamard(torch.eye(8))
    assert torch.equal(matrix, matrix.T)


@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
@pytest.mark.parametrize("kind", KINDS)
def test_attention(tmp_path: Path, kind: str, kv_dtype: str) -> None:
    spec, x = attention(Weights(tmp_path), LARGE, kind), inputs(LARGE, 45)
    block = Block(spec, kv_dtype, low_precision=True)
    found = block.sequence(x).feed(1, 1, 7, 1, 21, 14)
    expected = specified(x.double(), spec, KV_DTYPES[kv_dtype], low=True)
    assert_close(found, expected.out, 2e-5)
    plain = specified(x.double(), spec, KV_DTYPES[kv_dtype])
    assert (found - plain.out).square().mean() > 1e-3 * plain.out.square().mean()
    one_by_one = block.sequence(x)
    assert_same_bits(one_by_one.feed(*[1] * 45), found)
    assert_same_bits(Block(spec, kv_dtype, threads=3, low_precision=True).sequence(x).feed(45), found)
    if expected.index_rows is not None:
        assert_close(one_by_one.state()["indexer.rows"], expected.index_rows.float(), 2e-5)


@pytest.mark.parametrize("kind", [types.F32, types.F16], ids=lambda kind: kind.name)
def test_experts(tmp_path: Path, kind: types.WeightType) -> None:
    """What enters `down` is rounded with the routing weight in it."""
    layer = Layer(tmp_path, (kind, kind), low_precision=True, shared_kind=kind)
    x, (ids, weights) = random(29, HIDDEN, spread=0.1), routing(29)
    found = layer.run(x, ids, weights)
    assert_close(found, layer.expected(x, ids, weights), 3e-4)
    layer.low_precision = False
    assert (found - layer.expected(x, ids, weights)).square().mean() > 1e-3 * found.square().mean()


@pytest.mark.parametrize("fused", [False, True])
def test_join(tmp_path: Path, fused: bool) -> None:
    spec, device = join(Weights(tmp_path), LARGE, fused), Device(low_precision=True)
    streams, x = random(9, 4, LARGE.hidden), random(9, LARGE.hidden, seed=3)
    (found,) = device.out(device.ops.join(spec).run(array(streams), array(x)))
    assert_close(found, head_spec.join(streams.double(), x.double(), spec, low_precision=True), 2e-5)
