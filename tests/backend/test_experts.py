"""The experts of a layer: right, each row by itself to the bit, and however they come."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from penstock.backend.base import Elsewhere, ExpertLease, ExpertTable
from penstock.backend.cpu.memory import Buffer
from penstock.backend.deepseek_v4 import ExpertsSpec
from penstock.weights import types
from penstock.weights.types import WeightType
from tests.backend.helpers import (
    Device,
    Weights,
    array,
    assert_close,
    assert_rows_stand_alone,
    assert_same_bits,
    random,
)
from tests.spec.experts import Expert
from tests.spec.experts import experts as specified

HIDDEN, WIDTH, SHARED_WIDTH, COUNT = 512, 256, 320, 9
MIXES = [
    (types.F32, types.F32),
    (types.Q8_0, types.Q8_0),
    (types.IQ2_XXS, types.Q2_K),
    (types.Q4_K, types.Q4_K),
    (types.MXFP4, types.MXFP4),
    (types.FP4_E2M1, types.FP4_E2M1),
    (types.FP8_E4M3, types.FP8_E4M3),
    (types.Q4_0, types.Q4_0),  # decoded inside the product
    (types.Q4_0, types.Q8_0),
    (types.IQ4_XS, types.Q6_K),
]
by_mix = pytest.mark.parametrize("mix", MIXES, ids=lambda mix: f"{mix[0].name}-{mix[1].name}")
Mix = tuple[WeightType, WeightType]


class Lease:
    """Experts that come in the given shares."""

    elsewhere: Elsewhere | None = None

    def __init__(self, tables: list[ExpertTable], resident: bool, requested_with: int = 0):
        self.tables, self.resident, self.requested_with = tables, resident, requested_with
        self.requested = self.last = False

    def as_they_come(self) -> Iterator[ExpertTable]:
        for number, table in enumerate(self.tables):
            self.requested = self.requested or number >= self.requested_with
            self.last = number == len(self.tables) - 1
            yield table

    in_order = as_they_come


class Layer:
    """Nine experts and a shared one."""

    def __init__(
        self, folder: Path, mix: Mix, low_precision: bool = False, shared_kind: WeightType = types.Q8_0
    ):
        self.low_precision = low_precision
        gates, downs = (Weights(folder / str(number), kind) for number, kind in enumerate(mix))
        shared = Weights(folder / "shared", shared_kind)
        for weights in (gates, downs, shared):
            weights.folder.mkdir(exist_ok=True)

        def expert(first: Weights, last: Weights, width: int) -> Expert:
            gate, up = (first.make(width, HIDDEN) for _ in range(2))
            return Expert(gate, up, last.make(HIDDEN, width))

        self.routed = {number: expert(gates, downs, WIDTH) for number in range(COUNT)}
        self.shared = expert(shared, shared, SHARED_WIDTH)
        self.backend = Device(low_precision=low_precision).backend
        self.spec = ExpertsSpec(self.backend.expert(*self.shared), 7.0, 5.0, HIDDEN)

    def table(self, *numbers: int) -> ExpertTable:
        table = self.backend.expert_table(COUNT)
        for number in numbers:
            table.put(number, self.backend.expert(*self.routed[number]))
        return table

    def run(
        self, x: Tensor, ids: Tensor, weights: Tensor, lease: Lease | None = None, threads: int = 1
    ) -> Tensor:
        device = Device(threads, low_precision=self.low_precision)
        lease = lease or Lease([self.table(*range(COUNT))], resident=True)
        op = device.ops.experts(self.spec)
        (found,) = device.out(op.run(array(x), array(ids), array(weights), lease))
        device.backend.check()
        return found

    def expected(self, x: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        low = self.low_precision
        return specified(x.double(), ids, weights.double(), self.routed, self.shared, self.spec, low)


def routing(rows: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Ids 0 to 8 without order, now and then one twice in a row."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.stack([torch.randperm(COUNT, generator=generator)[:4] for _ in range(rows)])
    ids[::3, 2] = ids[::3, 0]
    return ids, torch.rand(rows, 4, generator=generator)


@by_mix
def test_like_the_specification_and_row_by_row(tmp_path: Path, mix: Mix) -> None:
    layer, x, (ids, weights) = Layer(tmp_path, mix), random(29, HIDDEN, spread=0.1), routing(29)
    found = layer.run(x, ids, weights)
    assert_close(found, layer.expected(x, ids, weights), 3e-4)
    assert_rows_stand_alone(29, lambda part: (layer.run(x[part], ids[part], weights[part]),), [1, 3, 7, 20])
    for threads in (2, 3, 5):
        assert_same_bits(layer.run(x, ids, weights, threads=threads), found)


@by_mix
@pytest.mark.parametrize("rows", [1, 3, 40])
@pytest.mark.parametrize("low_precision", [False, True])
def test_however_they_come(tmp_path: Path, mix: Mix, rows: int, low_precision: bool) -> None:
    """Experts that come one after another, in ascending shares or, where rows are few, in any order, give what they
    give at once; and the shared expert may be computed early."""
    layer, x, (ids, weights) = (
        Layer(tmp_path, mix, low_precision),
        random(rows, HIDDEN, spread=0.1),
        routing(rows),
    )
    expected = layer.run(x, ids, weights)
    shares: list[tuple[int, ...]] = [(0, 1, 2), (3,), (4, 5, 6, 7), (8,)]
    if rows <= 16:
        shares = [(7, 2), *((number,) for number in (0, 8, 4, 3, 1, 6, 5))]
    for requested_with in (0, 2):
        tables = [layer.table(*share) for share in shares]
        lease = Lease(tables, resident=False, requested_with=requested_with)
        assert_same_bits(layer.run(x, ids, weights, lease), expected)


class Others:
    """Experts from `first` on are computed by another op; those from `lost` on are given back."""

    def __init__(self, layer: Layer, first: int, lost: int):
        self.layer, self.first, self.lost = layer, first, lost

    def begin(self, x: Any, ids: Any, weights: Any, terms: Any) -> Any:
        device = Device(low_precision=self.layer.low_precision)
        done = device.ops.experts(self.layer.spec).terms(
            x,
            Buffer(np.where((ids.array >= self.first) & (ids.array < self.lost), ids.array, COUNT)),
            weights,
            Lease([self.layer.table(*range(COUNT))], resident=True),
        )
        there = np.flatnonzero((ids.array >= self.first) & (ids.array < self.lost))
        terms.array[there] = done.array[there]
        self.left = Buffer(np.where(ids.array >= self.lost, ids.array, COUNT))
        return Buffer(np.where(ids.array < self.first, ids.array, COUNT))

    def finish(self) -> Iterator[tuple[Any, ExpertLease]]:
        yield self.left, Lease([self.layer.table(*range(COUNT))], resident=True)


@by_mix
@pytest.mark.parametrize("rows", [1, 3, 40])
@pytest.mark.parametrize("low_precision", [False, True])
def test_whoever_computes_them(tmp_path: Path, mix: Mix, rows: int, low_precision: bool) -> None:
    """Terms that somebody else computes, or was to compute and did not, give what all give here."""
    layer, x, (ids, weights) = (
        Layer(tmp_path, mix, low_precision),
        random(rows, HIDDEN, spread=0.1),
        routing(rows),
    )
    expected = layer.run(x, ids, weights)
    for first, lost in ((5, COUNT), (0, COUNT), (3, 6), (COUNT, COUNT)):
        lease = Lease([layer.table(*range(COUNT))], resident=True)
        lease.elsewhere = Others(layer, first, lost)
        assert_same_bits(layer.run(x, ids, weights, lease), expected)


def test_more_rows_than_fit_at_once(tmp_path: Path) -> None:
    layer, x, (ids, weights) = Layer(tmp_path, (types.Q8_0, types.Q8_0)), random(1030, HIDDEN), routing(1030)
    found = layer.run(x, ids, weights)
    for part in (slice(0, 5), slice(510, 515), slice(1029, 1030)):
        assert_same_bits(found[part], layer.run(x[part], ids[part], weights[part]))


@pytest.mark.parametrize(
    "mix", [(types.IQ2_XXS, types.Q2_K), (types.F32, types.F32)], ids=["integers", "floats"]
)
def test_one_odd_row_leaves_the_others_alone(tmp_path: Path, mix: Mix) -> None:
    layer, x, (ids, weights) = Layer(tmp_path, mix), random(7, HIDDEN, spread=0.1), routing(7)
    expected = layer.run(x, ids, weights)
    x[3, 100] = torch.nan
    found = layer.run(x, ids, weights)
    keep = torch.arange(7) != 3
    assert_same_bits(found[keep], expected[keep])
    assert found[3].isnan().all()


def test_an_expert_named_twice_counts_twice(tmp_path: Path) -> None:
    layer, x = Layer(tmp_path, (types.Q8_0, types.Q8_0)), random(1, HIDDEN, spread=0.1)
    twice = layer.run(x, torch.tensor([[2, 2]]), torch.tensor([[0.5, 0.25]]))
    once = layer.run(x, torch.tensor([[2]]), torch.tensor([[0.75]]))
    assert_close(twice, once, 2e-6)


def test_gates_are_clamped_above_and_ups_on_both_sides(tmp_path: Path) -> None:
    """Weights that only pass numbers on: gate and up are two halves of the input."""
    weights, backend = Weights(tmp_path), Device().backend
    eye = torch.eye(3)
    nothing = torch.zeros(3, 6)
    gate, up = (
        weights.of(torch.cat((eye, nothing[:, :3]), 1)),
        weights.of(torch.cat((nothing[:, :3], eye), 1)),
    )
    down, zero = weights.of(torch.cat((eye, eye))), weights.of(nothing)
    spec = ExpertsSpec(backend.expert(zero, zero, down), 10.0, 10.0, 6)
    table = backend.expert_table(1)
    table.put(0, backend.expert(gate, up, down))
    device = Device()
    x = torch.tensor([[20.0, -20.0, 1.0, -30.0, 30.0, 0.5], [3e38, -80.0, -104.0, 1.0, 1.0, 1.0]])
    ids, ones = torch.zeros(2, 1, dtype=torch.long), torch.ones(2, 1)
    found = device.ops.experts(spec).run(array(x), array(ids), array(ones), Lease([table], resident=True))
    (out,) = device.out(found)

    def silu(v: float) -> float:
        return float(v * torch.sigmoid(torch.tensor(v, dtype=torch.float64)))

    assert out[0, :3].tolist() == pytest.approx([silu(10) * -10, silu(-20) * 10, silu(1) * 0.5], rel=1e-6)
    assert out[1, :3].tolist() == pytest.approx([silu(10), silu(-80), 0], rel=1e-6, abs=1e-36)


def test_parts_that_do_not_fit_each_other_are_refused(tmp_path: Path) -> None:
    weights, backend = Weights(tmp_path), Device().backend
    gate, down = weights.make(8, 16), weights.make(16, 8)
    for parts in ((gate, down, down), (gate, gate, gate), (gate, weights.make(8, 15), down)):
        with pytest.raises(ValueError, match="do not fit each other"):
            backend.expert(*parts)
