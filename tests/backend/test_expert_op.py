"""The experts of a layer in one call: right, and each row by itself to the bit."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from penstock.kernels import cpu, reference
from penstock.kernels.ops import Expert
from penstock.weights import types
from penstock.weights.types import WeightType
from tests.kernels.helpers import (
    assert_close,
    assert_rows_stand_alone,
    assert_same_bits,
    make_weight,
    random,
    threads,
)

HIDDEN, WIDTH = 512, 256
MIXES = [
    (types.F32, types.F32),
    (types.Q8_0, types.Q8_0),
    (types.IQ2_XXS, types.Q2_K),
    (types.Q4_K, types.Q4_K),
    (types.MXFP4, types.MXFP4),
    (types.FP4_E2M1, types.FP4_E2M1),
    (types.FP8_E4M3, types.FP8_E4M3),
    (types.Q4_0, types.Q4_0),  # decoded first
    (types.Q4_0, types.Q8_0),
]
by_mix = pytest.mark.parametrize("mix", MIXES, ids=lambda mix: f"{mix[0].name}-{mix[1].name}")


def make(folder: Path, mix: tuple[WeightType, WeightType], seed: int, width: int = WIDTH) -> Expert:
    parts = [
        make_weight(folder / f"{seed}.gate", mix[0], width, HIDDEN, 10 * seed),
        make_weight(folder / f"{seed}.up", mix[0], width, HIDDEN, 10 * seed + 1),
        make_weight(folder / f"{seed}.down", mix[1], HIDDEN, width, 10 * seed + 2),
    ]
    return Expert(*parts)


def routing(rows: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Ids 0 to 8 without order, now and then one twice in a row."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.stack([torch.randperm(9, generator=generator)[:4] for _ in range(rows)])
    ids[::3, 2] = ids[::3, 0]
    return ids, torch.rand(rows, 4, generator=generator)


@by_mix
@pytest.mark.parametrize("shared", [False, True])
def test_like_the_reference_and_row_by_row(
    tmp_path: Path, mix: tuple[WeightType, WeightType], shared: bool
) -> None:
    chosen = {number: make(tmp_path, mix, number) for number in range(9)}
    extra = make(tmp_path, (types.Q8_0, types.Q8_0), 20, 320) if shared else None
    x = random(29, HIDDEN, spread=0.1)
    ids, weights = routing(29)
    found = cpu.experts(x, ids, weights, chosen, 7.0, extra, 5.0)
    assert_close(found, reference.experts(x, ids, weights, chosen, 7.0, extra, 5.0), 3e-4)
    assert_rows_stand_alone(
        29,
        lambda part: (cpu.experts(x[part], ids[part], weights[part], chosen, 7.0, extra, 5.0),),
        [1, 3, 7, 20],
    )
    for count in (1, 2, 5):
        with threads(count):
            assert_same_bits(cpu.experts(x, ids, weights, chosen, 7.0, extra, 5.0), found)


def test_like_separate_products(tmp_path: Path) -> None:
    """The same bits as one op after the other, which is how results are defined."""
    mix = (types.IQ2_XXS, types.Q2_K)
    chosen = {number: make(tmp_path, mix, number) for number in (2, 5)}
    shared = make(tmp_path, (types.Q8_0, types.Q8_0), 20)
    x = random(1, HIDDEN, spread=0.1)
    found = cpu.experts(x, torch.tensor([[5, 2]]), torch.tensor([[0.75, 0.5]]), chosen, 7.0, shared, 7.0)
    outputs = []
    for expert in (chosen[2], chosen[5], shared):
        gate, up = cpu.linears(x, (expert.gate, expert.up))
        outputs.append(cpu.linear(cpu.swiglu(gate, up, 7.0), expert.down).double())
    # Fused: a product and a sum are rounded once.
    total = (outputs[0] * 0.5).float().double()
    total = (outputs[1] * 0.75 + total).float().double()
    assert_same_bits(found, (outputs[2] + total).float())


def test_more_rows_than_fit_at_once(tmp_path: Path) -> None:
    chosen = {number: make(tmp_path, (types.Q8_0, types.Q8_0), number) for number in range(9)}
    ids, weights = routing(1030)
    x = random(1030, HIDDEN)
    found = cpu.experts(x, ids, weights, chosen, 7.0)
    for part in (slice(0, 5), slice(510, 515), slice(1029, 1030)):
        assert_same_bits(found[part], cpu.experts(x[part], ids[part], weights[part], chosen, 7.0))


def test_one_odd_row_leaves_the_others_alone(tmp_path: Path) -> None:
    chosen = {number: make(tmp_path, (types.IQ2_XXS, types.Q2_K), number) for number in range(9)}
    ids, weights = routing(7)
    x = random(7, HIDDEN, spread=0.1)
    expected = cpu.experts(x, ids, weights, chosen, 7.0)
    x[3, 100] = torch.nan
    found = cpu.experts(x, ids, weights, chosen, 7.0)
    keep = torch.arange(7) != 3
    assert_same_bits(found[keep], expected[keep])
    assert found[3].isnan().all()


def test_nothing_to_do(tmp_path: Path) -> None:
    chosen = {0: make(tmp_path, (types.F32, types.F32), 0)}
    empty = cpu.experts(torch.zeros(0, HIDDEN), torch.zeros(0, 4).long(), torch.zeros(0, 4), chosen, 7.0)
    assert empty.shape == (0, HIDDEN)


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    chosen = {0: make(tmp_path, (types.F32, types.F32), 0)}
    one = torch.ones(1, 1)
    with pytest.raises(ValueError, match="expert 3 is routed to but not given"):
        cpu.experts(torch.zeros(1, HIDDEN), torch.tensor([[3]]), one, chosen, 7.0)
    with pytest.raises(ValueError, match="do not fit"):
        cpu.experts(torch.zeros(1, 8), torch.tensor([[0]]), one, chosen, 7.0)
    with pytest.raises(ValueError, match="do not fit"):
        cpu.experts(torch.zeros(2, HIDDEN), torch.tensor([[0]]), one, chosen, 7.0)


@by_mix
@pytest.mark.parametrize("rows", [1, 3, 40])
def test_in_shares_and_in_parts_to_the_same_bits(
    tmp_path: Path, mix: tuple[WeightType, WeightType], rows: int
) -> None:
    """Experts that come one after another, in ascending shares or in any order, give what they give at once."""
    chosen = {number: make(tmp_path, mix, number) for number in range(9)}
    shared = make(tmp_path, (types.Q8_0, types.Q8_0), 20, 320)
    x = random(rows, HIDDEN, spread=0.1)
    ids, weights = routing(rows)
    expected = cpu.experts(x, ids, weights, chosen, 7.0, shared, 5.0)
    out = torch.zeros_like(x)
    for share in ((0, 1, 2), (3,), (4, 5, 6, 7), (8,)):
        last = shared if 8 in share else None
        cpu.experts(x, ids, weights, {n: chosen[n] for n in share}, 7.0, last, 5.0, out=out)
    assert_same_bits(out, expected)
    parts = torch.full((rows * 4 + rows, HIDDEN), torch.nan)
    cpu.expert_parts(x, ids, {7: chosen[7], 2: chosen[2]}, 7.0, shared, 5.0, parts)
    for number in (0, 8, 4, 3, 1, 6, 5):
        cpu.expert_parts(x, ids, {number: chosen[number]}, 7.0, None, 0.0, parts)
    assert_same_bits(cpu.expert_sum(ids, weights, parts, shared=True), expected)
    slow = torch.full_like(parts, torch.nan)
    reference.expert_parts(x, ids, chosen, 7.0, shared, 5.0, slow)
    assert_close(reference.expert_sum(ids, weights, slow, shared=True), expected, 3e-4)
