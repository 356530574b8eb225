"""Golden values of single formulas, worked out by hand in float64."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from penstock.kernels import cpu, reference
from penstock.kernels.ops import Ops
from penstock.model.rope import Frequencies
from penstock.weights.config import ModelConfig
from tests.published import FLASH

KERNELS: list[Ops] = [reference, cpu]


def test_plain_frequencies() -> None:
    speed = Frequencies(FLASH, compressed=False).speed.double()
    assert speed[[8, 16, 24, 31]].tolist() == pytest.approx([0.1, 0.01, 1e-3, 1.333521432e-4], rel=1e-6)


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
    speed = Frequencies(FLASH, compressed=True).speed.double()
    assert speed[list(golden)].tolist() == pytest.approx(list(golden.values()), rel=1e-6)


def test_angles_stay_exact_at_a_million() -> None:
    cos, sin = Frequencies(FLASH, compressed=True).rotation(cpu, torch.tensor([1_048_575]))
    angle = 1_048_575 * 1.0  # the fastest pair turns one radian per token
    assert float(cos[0, 0]) == pytest.approx(math.cos(angle), abs=1e-7)
    assert float(sin[0, 0]) == pytest.approx(math.sin(angle), abs=1e-7)


def test_no_yarn_means_plain_powers() -> None:
    config: ModelConfig = replace(FLASH, yarn_factor=1.0)
    speed = Frequencies(config, compressed=True).speed
    assert speed.tolist() == pytest.approx([160000 ** (-2 * i / 64) for i in range(32)], rel=1e-6)


@pytest.mark.parametrize("ops", KERNELS)
def test_hyper_mix_golden(ops: Ops) -> None:
    mixes = torch.tensor([[0.1 * ((7 * k) % 24) - 1.1 for k in range(24)]])
    base = torch.tensor([0.05 * (k % 5) - 0.1 for k in range(24)])
    mix = ops.hyper_mix(mixes, base, torch.tensor([0.5, 1.0, 2.0]), 4, 20, 1e-6)
    assert mix.pre[0].tolist() == pytest.approx([0.34299054, 0.43782450, 0.53743085, 0.63413659], abs=2e-7)
    assert mix.post[0].tolist() == pytest.approx([0.70868739, 0.95004163, 1.31402093, 0.53788284], abs=2e-7)
    rows = [
        [0.04798600, 0.08519729, 0.82668074, 0.04013837],
        [0.26357453, 0.46797144, 0.04798544, 0.22046644],
        [0.24804271, 0.44039496, 0.04515781, 0.26640234],
        [0.44039576, 0.00643531, 0.08017502, 0.47299184],
    ]
    np.testing.assert_allclose(mix.comb[0].numpy(), rows, atol=3e-7)


@pytest.mark.parametrize("ops", KERNELS)
def test_hyper_expand_applies_source_to_destination(ops: Ops) -> None:
    """Stream 1 receives from stream 0, and not the other way round."""
    from penstock.kernels.ops import Mix

    comb = torch.zeros(1, 2, 2)
    comb[0, 0, 1] = 1.0
    streams = torch.tensor([[[5.0, 6.0], [7.0, 8.0]]])
    out = ops.hyper_expand(
        torch.tensor([[1.0, 1.0]]), streams, Mix(torch.zeros(1, 2), torch.tensor([[2.0, 3.0]]), comb)
    )
    assert out.tolist() == [[[2.0, 2.0], [8.0, 9.0]]]


@pytest.mark.parametrize("ops", KERNELS)
def test_route_scores_and_selection_bias(ops: Ops) -> None:
    logits = torch.tensor([[-5.0, -1.0, 0.0, 1.0, 5.0]])
    scores = [0.081947, 0.559698, 0.832555, 1.145976, 2.237569]
    ids, weights = ops.route(logits, None, None, 5, False, 1.0)
    assert ids.tolist() == [[4, 3, 2, 1, 0]]
    assert weights[0].tolist() == pytest.approx(scores[::-1], abs=1e-6)
    # A bias lifts expert 0 into the choice, but its weight stays the unbiased score.
    ids, weights = ops.route(logits, torch.tensor([10.0, 0, 0, 0, 0]), None, 2, True, 1.5)
    assert ids.tolist() == [[0, 4]]
    total = scores[0] + scores[4]
    assert weights[0].tolist() == pytest.approx([1.5 * scores[0] / total, 1.5 * scores[4] / total], abs=1e-6)


@pytest.mark.parametrize("ops", KERNELS)
def test_swiglu_clamps_gate_above_and_up_on_both_sides(ops: Ops) -> None:
    gate, up = torch.tensor([[20.0, -20.0, 1.0]]), torch.tensor([[-30.0, 30.0, 0.5]])

    def silu(v: float) -> float:
        return v / (1 + math.exp(-v))

    expected = [silu(10) * -10, silu(-20) * 10, silu(1) * 0.5]
    assert ops.swiglu(gate, up, 10.0)[0].tolist() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("ops", KERNELS)
def test_attention_window_is_inclusive_and_the_sink_only_dilutes(ops: Ops) -> None:
    """With equal scores a query averages itself and the window − 1 tokens before it, and the sink's share is lost."""
    window = torch.arange(6, dtype=torch.float32).unsqueeze(1).repeat(1, 2)  # rows 0 … 5
    q = torch.zeros(2, 1, 2)  # tokens 4 and 5
    out = ops.attend(q, window, 3, torch.zeros(1), None, None, None)
    assert out[:, 0, 0].tolist() == pytest.approx([(2 + 3 + 4) / 4, (3 + 4 + 5) / 4])


@pytest.mark.parametrize("ops", KERNELS)
def test_select_prefers_lower_rows_on_ties(ops: Ops) -> None:
    rows = torch.tensor([[1.0], [0.0], [1.0], [1.0], [-1.0]])
    picks = ops.select(torch.ones(3, 1, 1), torch.ones(3, 1), rows, torch.tensor([5, 4, 1]), 2)
    assert picks.tolist() == [[0, 2], [0, 2], [0, -1]]


@pytest.mark.parametrize("ops", KERNELS)
def test_a_closed_row_can_beat_a_negative_one(ops: Ops) -> None:
    """Head weights may be negative, so a row whose ReLUs are all closed (score 0) can rank first."""
    rows = torch.tensor([[1.0], [-1.0], [2.0]])
    picks = ops.select(torch.ones(1, 1, 1), -torch.ones(1, 1), rows, torch.tensor([3]), 1)
    assert picks.tolist() == [[1]]


def test_fp8_round_trip_golden() -> None:
    x = torch.zeros(1, 64)
    x[0, :5] = torch.tensor([0.3, 1.06, 17.0, 19.0, 448.0])
    assert reference.round_fp8(x, 64)[0, :5].tolist() == [0.3125, 1.0, 16.0, 20.0, 448.0]


def test_fp4_takes_ties_to_the_even_code() -> None:
    x = torch.tensor([[6.0, 0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, -5.0]])
    assert reference.round_fp4(x, 32)[0].tolist() == [6.0, 0.0, 1.0, 1.0, 2.0, 2.0, 4.0, 4.0, -4.0]


def test_scales_are_exact_powers_of_two() -> None:
    """A group whose largest value is exactly 448 · 2^k must not get a scale one step too large."""
    x = torch.full((1, 64), 448.0 * 2**-7)
    assert torch.equal(reference.round_fp8(x, 64), x)


def test_hadamard_is_orthogonal_and_symmetric() -> None:
    x = torch.randn(5, 128, dtype=torch.float64).float()
    back = reference.hadamard(reference.hadamard(x))
    assert torch.allclose(back, x, atol=1e-5)
    matrix = reference.hadamard(torch.eye(8))
    assert torch.equal(matrix, matrix.T)
