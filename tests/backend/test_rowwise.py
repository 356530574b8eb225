"""Norms, hyper-connections, pooling, routing and activations: right, and each row by itself to the bit."""

from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from penstock.kernels import cpu, reference
from penstock.kernels.ops import Mix, Ops
from tests.kernels.helpers import assert_close, assert_rows_stand_alone, assert_same_bits, random, threads

CPU: Ops = cpu
REFERENCE: Ops = reference


class Case(NamedTuple):
    """One op on made-up inputs: run(ops, which rows) → its results."""

    name: str
    make: Callable[[int, int, int], Callable[[Ops, slice], tuple[Tensor, ...]]]  # (rows, size, seed)


def _norm(rows: int, size: int, seed: int) -> Callable[[Ops, slice], tuple[Tensor, ...]]:
    x, weight = random(rows, size, seed=seed), random(size, seed=seed + 1)
    return lambda ops, part: (ops.rms_norm(x[part], weight, 1e-6), ops.rms_norm(x[part], None, 1e-6))


def _rotate(rows: int, size: int, seed: int) -> Callable[[Ops, slice], tuple[Tensor, ...]]:
    x, angle = random(rows, 3, 2 * size + 3, seed=seed), random(rows, size, seed=seed + 1)
    cos, sin = angle.double().cos().float(), angle.double().sin().float()
    return lambda ops, part: (
        ops.rotate(x[part], cos[part], sin[part]),
        ops.rotate(x[part, 0], cos[part], sin[part], inverse=True),
    )


def _mix(rows: int, size: int, seed: int) -> Callable[[Ops, slice], tuple[Tensor, ...]]:
    n = 1 + size % 5
    mixes = random(rows, (2 + n) * n, seed=seed, spread=4)
    base, scale = random((2 + n) * n, seed=seed + 1), random(3, seed=seed + 2)
    return lambda ops, part: tuple(ops.hyper_mix(mixes[part], base, scale, n, 1 + size % 20, 1e-6))


def _gate(rows: int, size: int, seed: int) -> Callable[[Ops, slice], tuple[Tensor, ...]]:
    mixes, base, scale = (
        random(rows, size, seed=seed, spread=9),
        random(size, seed=seed + 1),
        random(1, seed=3),
    )
    return lambda ops, part: (ops.hyper_gate(mixes[part], base, scale, 1e-6),)


def _streams(rows: int, size: int, seed: int) -> Callable[[Ops, slice], tuple[Tensor, ...]]:
    y, streams = random(rows, size, seed=seed), random(rows, 4, size, seed=seed + 1)
    mix = Mix(
        random(rows, 4, seed=seed + 2), random(rows, 4, seed=seed + 3), random(rows, 4, 4, seed=seed + 4)
    )
    return lambda ops, part: (
        ops.hyper_collapse(streams[part], mix.pre[part]),
        ops.hyper_expand(y[part], streams[part], Mix(mix.pre[part], mix.post[part], mix.comb[part])),
    )


def _pool(rows: int, size: int, seed: int) -> Callable[[Ops, slice], tuple[Tensor, ...]]:
    both = random(rows, 8, 2 * size, seed=seed, spread=3)  # as in the model: two halves of one tensor
    values, scores = both.chunk(2, dim=-1)
    scores = scores.clone() if seed % 2 else scores
    if seed % 2:
        scores[0, :4] = -torch.inf
    return lambda ops, part: (ops.pool(values[part], scores[part]),)


def _route(rows: int, size: int, seed: int) -> Callable[[Ops, slice], tuple[Tensor, ...]]:
    logits, bias = random(rows, size, seed=seed, spread=5), random(size, seed=seed + 1)
    count = min(size, 6)
    ids = torch.stack([torch.randperm(size)[:count] for _ in range(rows)])
    return lambda ops, part: (
        *ops.route(logits[part], bias, None, count, True, 2.5),
        *ops.route(logits[part], None, None, count, False, 1.0),
        *ops.route(logits[part], None, ids[part], count, True, 1.5),
    )


def _swiglu(rows: int, size: int, seed: int) -> Callable[[Ops, slice], tuple[Tensor, ...]]:
    gate, up = random(rows, size, seed=seed, spread=20), random(rows, size, seed=seed + 1, spread=8)
    return lambda ops, part: (ops.swiglu(gate[part], up[part], 10.0),)


def _lowprec(rows: int, size: int, seed: int) -> Callable[[Ops, slice], tuple[Tensor, ...]]:
    x, power = random(rows, 2, size, seed=seed), random(rows, 2, 64, seed=seed)
    return lambda ops, part: (
        ops.round_fp8(x[part], 128),
        ops.round_fp4(x[part], 32),
        ops.hadamard(power[part]),
    )


CASES = [
    Case("rms_norm", _norm),
    Case("rotate", _rotate),
    Case("hyper_mix", _mix),
    Case("hyper_gate", _gate),
    Case("hyper_streams", _streams),
    Case("pool", _pool),
    Case("route", _route),
    Case("swiglu", _swiglu),
    Case("low_precision", _lowprec),
]
by_op = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


@by_op
@pytest.mark.parametrize(("rows", "size"), [(1, 1), (1, 7), (5, 8), (4, 129), (33, 260)])
def test_like_the_reference(case: Case, rows: int, size: int) -> None:
    run = case.make(rows, size, size)
    for found, expected in zip(run(CPU, slice(None)), run(REFERENCE, slice(None)), strict=True):
        assert_close(found, expected)


@by_op
@settings(deadline=None, max_examples=25)
@given(
    rows=st.integers(1, 12),
    size=st.integers(1, 90),
    splits=st.lists(st.integers(1, 11), max_size=3),
    seed=st.integers(0, 2**20),
)
def test_every_row_stands_alone(case: Case, rows: int, size: int, splits: list[int], seed: int) -> None:
    run = case.make(rows, size, seed)
    assert_rows_stand_alone(rows, lambda part: run(CPU, part), splits)


@by_op
def test_threads_never_matter(case: Case) -> None:
    run = case.make(257, 1030, 5)  # enough work for several threads
    with threads(1):
        alone = run(CPU, slice(None))
    for count in (2, 5):
        with threads(count):
            for found, expected in zip(run(CPU, slice(None)), alone, strict=True):
                assert_same_bits(found, expected)


@by_op
def test_no_rows(case: Case) -> None:
    run = case.make(3, 20, 1)
    for none, all_rows in zip(run(CPU, slice(0, 0)), run(CPU, slice(None)), strict=True):
        assert none.shape == (0, *all_rows.shape[1:])


ODD = torch.tensor(
    [0.0, -0.0, 1e-42, -1e-45, 1e-20, 19.99, 20.01, 88.8, 104.0, 1e4, 3e38, -88.8, -104.0, -3e38]
)


def test_swiglu_at_the_ends() -> None:
    up = torch.full_like(ODD, 2.0)
    found = cpu.swiglu(ODD, up, 3e38)
    expected = ODD.double() * torch.sigmoid(ODD.double()) * 2
    assert_close(found[:-4].unsqueeze(1), expected[:-4].float().unsqueeze(1), 4e-7)
    assert not found[-3:].isnan().any()
    infinite = cpu.swiglu(torch.tensor([torch.inf, -torch.inf, torch.nan]), torch.ones(3), 10.0)
    assert infinite[0] == cpu.swiglu(torch.tensor([10.0]), torch.ones(1), 10.0)
    assert infinite[1] == 0
    assert infinite[2].isnan()


def test_exponential_is_accurate_and_the_same_everywhere() -> None:
    """A softmax over two candidates shows e^x: with values (1, 0) and scores (x, 0) it is e^x / (e^x + 1)."""
    x = torch.cat((torch.linspace(-87, 0, 40_001), ODD[ODD <= 0]))
    values = torch.stack((torch.ones_like(x), torch.zeros_like(x))).unsqueeze(0)
    scores = torch.stack((x, torch.zeros_like(x))).unsqueeze(0)
    exact = torch.sigmoid(x.double())
    found = cpu.pool(values, scores)[0]
    normal = exact > 1e-37
    assert ((found - exact).abs() <= 3e-7 * exact)[normal].all()
    for shift in (1, 3, 7):  # another place in the vector
        assert_same_bits(cpu.pool(values[..., shift:], scores[..., shift:])[0], found[shift:])


def test_route_takes_ties_to_the_lower_id() -> None:
    logits = torch.zeros(2, 40)
    logits[1, 17] = 1
    ids, weights = cpu.route(logits, None, None, 4, True, 1.0)
    assert ids.tolist() == [[0, 1, 2, 3], [17, 0, 1, 2]]
    assert_close(weights, reference.route(logits, None, None, 4, True, 1.0)[1])
    signed = torch.tensor([[0.0] * 4])
    bias = -torch.sqrt(torch.nn.functional.softplus(torch.tensor(0.0))).expand(4).contiguous()
    assert cpu.route(signed, bias, None, 2, True, 1.0)[0].tolist() == [[0, 1]]


def test_route_at_the_ends() -> None:
    logits = ODD.unsqueeze(0)
    found, expected = (ops.route(logits, None, None, 8, False, 1.0) for ops in (cpu, reference))
    assert torch.equal(found[0], expected[0])
    assert_close(found[1].T, expected[1].T)
    broken = torch.tensor([[1.0, torch.nan, torch.inf, -torch.inf, 2.0]])
    ids, weights = cpu.route(broken, None, None, 3, True, 1.0)
    assert ids.tolist() == [[2, 4, 0]]  # NaN never wins
    assert weights.shape == (1, 3)


def test_hyper_mix_survives_anything() -> None:
    mixes = torch.tensor([torch.inf, -torch.inf, torch.nan, 1e38]).repeat(6).unsqueeze(0)
    mixes = torch.cat((mixes, torch.ones(1, 24)))
    found = cpu.hyper_mix(mixes, torch.zeros(24), torch.ones(3), 4, 20, 1e-6)
    expected = reference.hyper_mix(mixes[1:], torch.zeros(24), torch.ones(3), 4, 20, 1e-6)
    for mine, good in zip(found, expected, strict=True):
        assert_close(mine[1:], good)


def test_norm_of_extremes() -> None:
    x = torch.stack((torch.full((33,), 3e38), torch.full((33,), 1e-40), torch.zeros(33), random(33)))
    found = cpu.rms_norm(x, None, 1e-6)  # squares do not overflow: they are summed as doubles
    exact = x.double() / torch.sqrt(x.double().square().mean(-1, keepdim=True) + 1e-6)
    assert_close(found, exact.float(), 3e-7)


def test_strided_views() -> None:
    wide = random(6, 4, 80)
    view = wide[::2, :, 7:50]
    pre = random(3, 8)[:, ::2]
    assert_same_bits(cpu.rms_norm(view, None, 1e-6), cpu.rms_norm(view.clone(), None, 1e-6))
    assert_same_bits(cpu.hyper_collapse(view, pre), cpu.hyper_collapse(view.clone(), pre.clone()))


def test_wrong_shapes_are_refused() -> None:
    x = torch.zeros(3, 8)
    for call in (
        lambda: cpu.rms_norm(x, torch.zeros(7), 1e-6),
        lambda: cpu.swiglu(x, torch.zeros(3, 7), 1.0),
        lambda: cpu.pool(torch.zeros(1, 2, 3), torch.zeros(1, 2, 4)),
        lambda: cpu.route(x, torch.zeros(7), None, 2, True, 1.0),
        lambda: cpu.route(x, None, None, 9, True, 1.0),
        lambda: cpu.route(x, None, torch.full((3, 2), 8), 2, True, 1.0),
        lambda: cpu.hyper_mix(torch.zeros(2, 23), torch.zeros(24), torch.zeros(3), 4, 3, 1e-6),
        lambda: cpu.hyper_collapse(torch.zeros(2, 4, 8), torch.zeros(2, 3)),
    ):
        with pytest.raises(ValueError, match=r"swiglu|rms_norm|pool|route|hyper"):
            call()
