"""Products with weights: right for every stored type, and the same bits for any rows, slabs and threads."""

import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.kernels import cpu, reference
from penstock.weights import types
from penstock.weights.types import WeightType
from tests.kernels.helpers import (
    WEIGHT_TYPES,
    assert_close,
    assert_rows_stand_alone,
    assert_same_bits,
    columns_for,
    make_weight,
    random,
    threads,
)

by_type = pytest.mark.parametrize("kind", WEIGHT_TYPES, ids=lambda kind: kind.name)


@by_type
@pytest.mark.parametrize("rows", [0, 1, 2, 3, 7])
def test_like_the_reference(tmp_path: Path, kind: WeightType, rows: int) -> None:
    columns = columns_for(kind, 301)
    weight = make_weight(tmp_path / "w", kind, 131, columns)
    x = random(rows, columns)
    assert_close(cpu.linear(x, weight), reference.linear(x, weight))


@by_type
def test_rows_and_threads_never_matter(tmp_path: Path, kind: WeightType) -> None:
    columns = columns_for(kind, 1500)
    weight = make_weight(tmp_path / "w", kind, 303, columns)
    x = random(8, columns)
    assert_rows_stand_alone(8, lambda rows: (cpu.linear(x[rows], weight),), [1, 3, 6])
    with threads(1):
        alone = cpu.linear(x, weight)
    for count in (2, 5):
        with threads(count):
            assert_same_bits(cpu.linear(x, weight), alone)


@settings(deadline=None, max_examples=40)
@given(
    rows=st.integers(1, 9),
    out=st.integers(1, 40),
    columns=st.integers(1, 70),
    splits=st.lists(st.integers(0, 9), max_size=3),
    seed=st.integers(0, 2**20),
)
def test_any_shape(
    tmp_path_factory: pytest.TempPathFactory, rows: int, out: int, columns: int, splits: list[int], seed: int
) -> None:
    weight = make_weight(tmp_path_factory.mktemp("w") / "w", types.F32, out, columns, seed)
    x = random(rows, columns, seed=seed)
    double = x.double() @ torch.from_numpy(weight.decode().copy()).double().T
    scale = x.abs().double() @ torch.from_numpy(weight.decode().copy()).abs().double().T
    assert ((cpu.linear(x, weight) - double).abs() <= 1e-6 * scale).all()
    assert_rows_stand_alone(rows, lambda part: (cpu.linear(x[part], weight),), splits)


@pytest.mark.parametrize("slab", [1, 1000, 5000, 1 << 30])
def test_slab_size_never_matters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slab: int) -> None:
    weight = make_weight(tmp_path / "w", types.Q8_0, 77, 320)
    x = random(5, 320)
    expected = cpu.linear(x, weight)
    monkeypatch.setattr(sys.modules["penstock.kernels.cpu.linear"], "SLAB", slab)
    assert_same_bits(cpu.linear(x, weight), expected)


@pytest.mark.parametrize("pad", [4, 5])  # from the mapping at an odd multiple of four bytes, and decoded
def test_float32_at_any_address(tmp_path: Path, pad: int) -> None:
    weight = make_weight(tmp_path / "w", types.F32, 19, 37, pad=pad)
    assert weight.in_place == (pad == 4)
    x = random(3, 37)
    assert_close(cpu.linear(x, weight), reference.linear(x, weight))


@by_type
@pytest.mark.parametrize("groups", [1, 2, 8])
def test_groups_like_the_reference(tmp_path: Path, kind: WeightType, groups: int) -> None:
    columns = columns_for(kind, 97)
    weight = make_weight(tmp_path / "w", kind, groups * 23, columns)
    x = random(6, groups, columns)
    found = cpu.grouped_linear(x, weight, groups)
    assert_close(found, reference.grouped_linear(x, weight, groups))
    for group in range(groups):  # a group is a product of its own
        part = make_weight(tmp_path / "part", types.F32, 23, columns)
        part.raw = weight.rows(group * 23, (group + 1) * 23).view("u1")
        assert_same_bits(found[:, group * 23 : (group + 1) * 23], cpu.linear(x[:, group], part))
    assert_rows_stand_alone(6, lambda rows: (cpu.grouped_linear(x[rows], weight, groups),), [2])


def test_strided_input(tmp_path: Path) -> None:
    weight = make_weight(tmp_path / "w", types.F32, 12, 40)
    wide = random(6, 80)
    for view in (wide[:, 20:60], wide[::2, ::2], wide[:, :40].T.contiguous().T):
        assert_same_bits(cpu.linear(view, weight), cpu.linear(view.clone(), weight))


@by_type
def test_embedding_rows(tmp_path: Path, kind: WeightType) -> None:
    columns = columns_for(kind, 64)
    weight = make_weight(tmp_path / "w", kind, 50, columns)
    tokens = torch.tensor([3, 49, 0, 3])
    found = cpu.embed(tokens, weight)
    assert_same_bits(found, torch.from_numpy(weight.decode().copy())[tokens])


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf, 3e38, 1e-42])
def test_one_odd_row_leaves_the_others_alone(tmp_path: Path, value: float) -> None:
    weight = make_weight(tmp_path / "w", types.F32, 21, 43)
    x = random(7, 43)
    expected = cpu.linear(x, weight)
    odd = x.clone()
    odd[3] = value
    found = cpu.linear(odd, weight)
    keep = torch.arange(7) != 3
    assert_same_bits(found[keep], expected[keep])
    if value == 1e-42:  # denormals are numbers like any other
        assert_close(found[3:4] / 1e-42, reference.linear(torch.ones(1, 43), weight), 0.05)


def test_wrong_shapes_are_refused(tmp_path: Path) -> None:
    weight = make_weight(tmp_path / "w", types.F32, 6, 8)
    with pytest.raises(ValueError, match="does not fit"):
        cpu.linear(torch.zeros(2, 9), weight)
    with pytest.raises(ValueError, match="does not fit"):
        cpu.grouped_linear(torch.zeros(2, 4, 8), weight, 4)
    with pytest.raises(ValueError, match="float32"):
        cpu.linear(torch.zeros(2, 8, dtype=torch.float16), weight)
