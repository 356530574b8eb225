"""Products with weights: right for every stored type, and the same bits for any rows, slabs and threads."""

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.kernels import cpu, reference
from penstock.kernels.cpu import decoded
from penstock.weights import types
from penstock.weights.types import WeightType
from tests.kernels.helpers import (
    INTEGER_TYPES,
    WEIGHT_TYPES,
    assert_close,
    assert_product,
    assert_rows_stand_alone,
    assert_same_bits,
    columns_for,
    make_weight,
    random,
    threads,
)

by_type = pytest.mark.parametrize("kind", WEIGHT_TYPES, ids=lambda kind: kind.name)


@by_type
@pytest.mark.parametrize("rows", [0, 1, 2, 3, 5, 17, 64])
def test_near_the_exact_product(tmp_path: Path, kind: WeightType, rows: int) -> None:
    columns = columns_for(kind, 301)
    weight = make_weight(tmp_path / "w", kind, 37, columns, pad=3 + rows % 4)  # at any address
    x = random(rows, columns)
    assert_product(cpu.linear(x, weight), x, weight)


@by_type
def test_rows_and_threads_never_matter(tmp_path: Path, kind: WeightType) -> None:
    columns = columns_for(kind, 1500)
    weight = make_weight(tmp_path / "w", kind, 303, columns)
    x = random(70, columns)
    assert_rows_stand_alone(70, lambda rows: (cpu.linear(x[rows], weight),), [1, 3, 6, 11, 40])
    with threads(1):
        alone = cpu.linear(x, weight)
    for count in (2, 5):
        with threads(count):
            assert_same_bits(cpu.linear(x, weight), alone)


@by_type
def test_weight_rows_stand_alone(tmp_path: Path, kind: WeightType) -> None:
    columns = columns_for(kind, 256)
    whole = make_weight(tmp_path / "w", kind, 35, columns)
    for rows in (1, 6):
        x = random(rows, columns)
        expected = cpu.linear(x, whole)
        for out in (1, 2, 3, 17, 33):
            part = make_weight(tmp_path / "w", kind, 35, columns)
            part.raw, part.shape = part.raw[:out], (out, columns)
            assert_same_bits(cpu.linear(x, part), expected[:, :out].contiguous())


def test_several_weights_at_once(tmp_path: Path) -> None:
    weights = [
        make_weight(tmp_path / kind.name, kind, 5 + number, 256) for number, kind in enumerate(WEIGHT_TYPES)
    ]
    weights.append(make_weight(tmp_path / "decoded", types.Q4_0, 9, 256))
    for rows in (0, 1, 9):
        x = random(rows, 256)
        for found, weight in zip(cpu.linears(x, weights), weights, strict=True):
            assert_same_bits(found, cpu.linear(x, weight))
        assert len(reference.linears(x, weights)) == len(weights)
    assert cpu.linears(x, []) == []


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
    weight = make_weight(tmp_path / "w", types.Q4_0, 77, 320)  # a type that is decoded first
    x = random(5, 320)
    expected = cpu.linear(x, weight)
    assert_close(expected, reference.linear(x, weight))
    monkeypatch.setattr(decoded, "SLAB", slab)
    assert_same_bits(cpu.linear(x, weight), expected)


@pytest.mark.parametrize("pad", [4, 5])  # from the mapping at an odd multiple of four bytes, and decoded
def test_float32_at_any_address(tmp_path: Path, pad: int) -> None:
    weight = make_weight(tmp_path / "w", types.F32, 19, 37, pad=pad)
    assert weight.in_place == (pad == 4)
    x = random(3, 37)
    assert_close(cpu.linear(x, weight), reference.linear(x, weight))


@by_type
@pytest.mark.parametrize("groups", [1, 2, 8])
def test_a_group_is_a_product_of_its_own(tmp_path: Path, kind: WeightType, groups: int) -> None:
    columns = columns_for(kind, 97)
    out = 128 if kind is types.FP8_E4M3 else 23  # scales are shared by 128 rows
    weight = make_weight(tmp_path / "w", kind, groups * out, columns)
    x = random(6, groups, columns)
    found = cpu.grouped_linear(x, weight, groups)
    for group in range(groups):
        rows = slice(group * out, (group + 1) * out)
        part = make_weight(tmp_path / "w", kind, groups * out, columns)
        part.raw, part.shape = part.raw[rows], (out, columns)
        if part.scale is not None:
            part.scale = part.scale[group : group + 1] if kind is types.FP8_E4M3 else part.scale[rows]
        assert_same_bits(found[:, rows].contiguous(), cpu.linear(x[:, group], part))
    assert_rows_stand_alone(6, lambda rows: (cpu.grouped_linear(x[rows], weight, groups),), [2])
    assert_close(found, reference.grouped_linear(x, weight, groups), 2e-4)


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


@by_type
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf, 1e38, 1e-42])
def test_one_odd_row_leaves_the_others_alone(tmp_path: Path, kind: WeightType, value: float) -> None:
    columns = columns_for(kind, 301)
    weight = make_weight(tmp_path / "w", kind, 21, columns)
    for rows in (3, 7):
        x = random(rows, columns)
        expected = cpu.linear(x, weight)
        odd = x.clone()
        odd[1, columns - 1] = value
        found = cpu.linear(odd, weight)
        keep = torch.arange(rows) != 1
        assert_same_bits(found[keep], expected[keep])
        if not abs(value) < torch.inf:
            assert not found[1].isfinite().any()
        if kind in INTEGER_TYPES and not abs(value) < torch.inf:
            assert found[1].isnan().all()


@by_type
def test_denormals_are_numbers_like_any_other(tmp_path: Path, kind: WeightType) -> None:
    columns = columns_for(kind, 301)
    weight = make_weight(tmp_path / "w", kind, 21, columns)
    for size in (1e-36, 1e-30, 1e30):
        x = random(4, columns) * size
        assert_product(cpu.linear(x, weight), x, weight)
    assert_same_bits(cpu.linear(torch.zeros(2, columns), weight).abs(), torch.zeros(2, 21))


def test_wrong_shapes_are_refused(tmp_path: Path) -> None:
    weight = make_weight(tmp_path / "w", types.F32, 6, 8)
    with pytest.raises(ValueError, match="does not fit"):
        cpu.linear(torch.zeros(2, 9), weight)
    with pytest.raises(ValueError, match="does not fit"):
        cpu.grouped_linear(torch.zeros(2, 4, 8), weight, 4)
    with pytest.raises(ValueError, match="float32"):
        cpu.linear(torch.zeros(2, 8, dtype=torch.float16), weight)
