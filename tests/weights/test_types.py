"""The registry of storage formats, against the type numbers and block sizes of the GGUF package."""

import gguf
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.weights import types
from penstock.weights.types import ALL_TYPES, WeightType, by_ggml_id, by_name

GGUF_TYPES = [kind for kind in ALL_TYPES if kind.ggml_id is not None]


@pytest.mark.parametrize("kind", GGUF_TYPES, ids=lambda kind: kind.name)
def test_numbers_and_sizes_are_those_of_gguf(kind: WeightType) -> None:
    theirs = gguf.GGMLQuantizationType[kind.name]
    assert kind.ggml_id == theirs.value
    assert (kind.block, kind.block_bytes) == gguf.GGML_QUANT_SIZES[theirs]


def test_gguf_types_we_leave_out_are_known() -> None:
    ours = {kind.name for kind in GGUF_TYPES}
    assert {kind.name for kind in gguf.GGML_QUANT_SIZES} - ours == {"Q8_1", "Q1_0"}


def test_names_and_numbers_are_unique_and_lead_back() -> None:
    assert len({kind.name for kind in ALL_TYPES}) == len(ALL_TYPES)
    assert all(by_name(kind.name) is kind for kind in ALL_TYPES)
    assert all(kind.ggml_id is None or by_ggml_id(kind.ggml_id) is kind for kind in ALL_TYPES)
    assert all(getattr(types, kind.name) is kind for kind in ALL_TYPES)


def test_every_constant_is_registered() -> None:
    assert {value for value in vars(types).values() if isinstance(value, WeightType)} == set(ALL_TYPES)


@pytest.mark.parametrize("number", [-1, 4, 5, 9, 31, 1000])
def test_unknown_numbers_have_no_type(number: int) -> None:
    assert by_ggml_id(number) is None


@pytest.mark.parametrize("name", ["", "q8_0", "Q8_1", "F8_E4M3"])
def test_unknown_names_have_no_type(name: str) -> None:
    assert by_name(name) is None


@given(
    kind=st.sampled_from(ALL_TYPES),
    blocks=st.integers(0, 1000),
    leading=st.lists(st.integers(0, 50), max_size=3),
)
def test_a_tensor_is_its_rows(kind: WeightType, blocks: int, leading: list[int]) -> None:
    rows = 1
    for size in leading:
        rows *= size
    assert kind.row_bytes(blocks * kind.block) == blocks * kind.block_bytes
    assert kind.nbytes([*leading, blocks * kind.block]) == rows * blocks * kind.block_bytes


def test_sizes_of_the_models_matrices() -> None:
    # One routed expert of DeepSeek-V4-Flash: gate and up are 2048 x 4096, down is 4096 x 2048.
    assert types.IQ2_XXS.nbytes((2048, 4096)) == 2_162_688
    assert types.Q2_K.nbytes((4096, 2048)) == 2_752_512
    assert types.MXFP4.nbytes((2048, 4096)) == 4_456_448
    assert types.FP4_E2M1.nbytes((2048, 4096)) == 4_194_304
    assert types.F32.nbytes(()) == 4


@pytest.mark.parametrize("columns", [1, 31, 33, -32])
def test_partial_blocks_are_refused(columns: int) -> None:
    with pytest.raises(ValueError, match=f"Q8_0 row is .* 32-element blocks, not {columns} "):
        types.Q8_0.row_bytes(columns)


def test_impossible_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match="cannot have the shape"):
        types.F32.nbytes((-2, -3))
    with pytest.raises(ValueError, match="Q4_K row"):
        types.Q4_K.nbytes(())
