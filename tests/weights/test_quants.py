"""Conversion between stored weights and float32: bit for bit what the GGUF package and torch compute."""

from typing import Any

import gguf.quants
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from penstock.weights import quants, types
from penstock.weights.quants.encode import encode_rows
from penstock.weights.types import ALL_TYPES, WeightType

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]

DECODERS = sorted(quants.DEQUANTIZABLE, key=lambda kind: kind.name)
# Those with one way to be encoded; tests/native/test_encode.py is about the others.
ENCODERS = [types.BF16, types.F16, types.F32, types.MXFP4, types.Q8_0]
by_type_name = pytest.mark.parametrize("kind", DECODERS, ids=lambda kind: kind.name)
by_written_type = pytest.mark.parametrize("kind", ENCODERS, ids=lambda kind: kind.name)


def random_bytes(seed: int, *shape: int) -> Bytes:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def gguf_dequantize(raw: Bytes, kind: WeightType) -> Floats:
    with np.errstate(all="ignore"):
        decoded: Floats = gguf.quants.dequantize(raw.copy(), gguf.GGMLQuantizationType[kind.name])
    return decoded


def gguf_quantize(values: Floats, kind: WeightType) -> Bytes:
    with np.errstate(all="ignore"):
        encoded = gguf.quants.quantize(values.copy(), gguf.GGMLQuantizationType[kind.name])
    return np.ascontiguousarray(encoded).view(np.uint8)


def assert_same_bits(found: Floats, expected: Floats) -> None:
    """Equal in every bit, signs of zeros included; any NaN equals any other."""
    assert found.dtype == expected.dtype == np.float32
    assert found.shape == expected.shape
    nan = np.isnan(expected)
    np.testing.assert_array_equal(np.isnan(found), nan)
    np.testing.assert_array_equal(found.view(np.uint32)[~nan], expected.view(np.uint32)[~nan])


# Damaged scales must not make the console noisy: a warning from our own code fails these tests.
pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")

# Dequantising


@by_type_name
def test_decodes_like_gguf(kind: WeightType) -> None:
    raw = random_bytes(1, 33, kind.row_bytes(512))  # random bytes: infinite and NaN scales among them
    assert_same_bits(quants.dequantize(raw, kind), gguf_dequantize(raw, kind))


@by_type_name
def test_decodes_across_chunks_like_gguf(kind: WeightType) -> None:
    raw = random_bytes(2, 3, 43, kind.row_bytes(1024))  # more than one chunk, and not a multiple of one
    assert_same_bits(quants.dequantize(raw, kind), gguf_dequantize(raw, kind))


@settings(deadline=None, max_examples=150)
@given(
    kind=st.sampled_from(DECODERS),
    leading=st.lists(st.integers(0, 4), max_size=3),
    blocks=st.integers(0, 3),
    offset=st.integers(0, 9),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_shape_at_any_address(
    kind: WeightType, leading: list[int], blocks: int, offset: int, seed: int
) -> None:
    shape = (*leading, blocks * kind.block_bytes)
    data = random_bytes(seed, offset + int(np.prod(shape))).tobytes()  # bytes: read-only
    raw = (
        np.frombuffer(data, np.uint8, offset=offset).reshape(shape)
        if len(data) > offset
        else np.empty(shape, np.uint8)
    )
    decoded = quants.dequantize(raw, kind)
    assert decoded.shape == (*leading, blocks * kind.block)
    if raw.size:
        assert_same_bits(decoded, gguf_dequantize(raw, kind))
    decoded[...] = 0  # the result is ours to write to


@by_type_name
def test_strided_rows(kind: WeightType) -> None:
    width = kind.row_bytes(256)
    raw = random_bytes(3, 10, width + 7)
    assert_same_bits(quants.dequantize(raw[::3, 5:-2], kind), gguf_dequantize(raw[::3, 5:-2], kind))


@pytest.mark.parametrize(
    "kind", sorted(set(ALL_TYPES) - quants.DEQUANTIZABLE, key=str), ids=lambda kind: kind.name
)
def test_types_that_are_not_weights_are_refused(kind: WeightType) -> None:
    assert not quants.is_dequantizable(kind)
    with pytest.raises(ValueError, match=f"{kind.name} data cannot be dequantized"):
        quants.dequantize(np.zeros((1, kind.block_bytes), np.uint8), kind)


def test_every_gguf_weight_type_has_a_decoder() -> None:
    without = {kind.name for kind in ALL_TYPES if kind.ggml_id is not None} - {k.name for k in DECODERS}
    assert without == {"F64", "I8", "I16", "I32", "I64", "Q8_K"}


def test_broken_rows_are_refused() -> None:
    signed: NDArray[Any] = np.zeros((2, 34), np.int8)
    with pytest.raises(ValueError, match="whole blocks of 34 bytes, not 35"):
        quants.dequantize(np.zeros((2, 35), np.uint8), types.Q8_0)
    with pytest.raises(ValueError, match="uint8"):
        quants.dequantize(signed, types.Q8_0)
    with pytest.raises(ValueError, match="rows of uint8"):
        quants.dequantize(np.zeros((), np.uint8), types.Q8_0)


# Checkpoint FP8 and FP4


def torch_values(raw: Bytes, dtype: torch.dtype) -> Floats:
    decoded: Floats = torch.from_numpy(raw.copy()).view(dtype).float().numpy()
    return decoded


def test_e8m0_is_torchs() -> None:
    codes = np.arange(256, dtype=np.uint8)
    assert_same_bits(quants.decode_e8m0(codes), torch_values(codes, torch.float8_e8m0fnu))


def test_smallest_scale_is_a_subnormal_not_zero() -> None:
    assert quants.decode_e8m0(np.zeros(1, np.uint8))[0] == np.float32(2.0**-127) > 0


@pytest.mark.parametrize("shape", [(1, 1), (128, 128), (129, 127), (300, 513), (0, 128), (5, 0)])
def test_fp8_decodes_like_torch(shape: tuple[int, int]) -> None:
    rows, columns = shape
    raw = random_bytes(4, rows, columns)
    scale = random_bytes(5, -(-rows // 128), -(-columns // 128))
    expected = torch_values(raw, torch.float8_e4m3fn)
    factors = torch_values(scale, torch.float8_e8m0fnu).repeat(128, axis=0).repeat(128, axis=1)
    with np.errstate(all="ignore"):
        expected = expected * factors[:rows, :columns]
    assert_same_bits(quants.dequantize_fp8(raw, scale), expected)


def test_fp8_extremes() -> None:
    raw = np.arange(256, dtype=np.uint8)[None]
    decoded = quants.dequantize_fp8(raw, np.array([[127, 255]], np.uint8))
    assert np.isnan(decoded[0, 127])
    assert np.nanmax(decoded[0, :128]) == 448
    assert decoded[0, 1] == 2.0**-9
    assert np.isnan(decoded[0, 128:]).all()
    tiny = quants.dequantize_fp8(raw, np.zeros((1, 2), np.uint8))
    assert tiny[0, 0x38] == np.float32(2.0**-127)  # 0x38 is 1.0


@settings(deadline=None, max_examples=40)
@given(first=st.integers(0, 399), count=st.integers(0, 400))
def test_fp8_slabs_are_rows_of_the_whole(first: int, count: int) -> None:
    raw, scale = random_bytes(6, 400, 130), random_bytes(7, 4, 2)
    whole = quants.dequantize_fp8(raw, scale)
    slab = quants.dequantize_fp8(raw[first : first + count], scale, first_row=first)
    assert_same_bits(slab, whole[first : first + count])


@pytest.mark.parametrize(
    ("rows", "scales", "first_row"), [(129, (1, 1), 0), (128, (1, 2), 0), (128, (1, 1), 1), (1, (1, 1), -1)]
)
def test_fp8_scales_must_cover_the_rows(rows: int, scales: tuple[int, int], first_row: int) -> None:
    with pytest.raises(ValueError, match="need scales"):
        quants.dequantize_fp8(np.zeros((rows, 128), np.uint8), np.zeros(scales, np.uint8), first_row)


E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)


def test_fp4_decodes_pairs_from_the_low_nibble() -> None:
    raw, scale = random_bytes(8, 70, 1024), random_bytes(9, 70, 64)
    expected = np.empty((70, 2048), np.float32)
    expected[:, 0::2] = E2M1[raw & 15]
    expected[:, 1::2] = E2M1[raw >> 4]
    with np.errstate(all="ignore"):
        expected *= torch_values(scale, torch.float8_e8m0fnu).repeat(32, axis=1)
    assert_same_bits(quants.dequantize_fp4(raw, scale), expected)


def fp4_to_mxfp4(raw: Bytes, scale: Bytes) -> tuple[Bytes, int | None]:
    rows, columns = len(raw), 2 * raw.shape[1]
    return encode_rows(raw, scale, types.FP4_E2M1, columns, range(rows), types.MXFP4, threads=2)


def test_repacking_fp4_is_lossless() -> None:
    """For every scale byte but NaN, subnormal scales 0 and 1 included, and to the last bit."""
    raw = random_bytes(10, 256, 256)
    scale = (np.arange(256)[:, None] + np.arange(16)).astype(np.uint8)  # [256, 16]
    scale[scale == 255] = 0
    repacked, bad = fp4_to_mxfp4(raw, scale)
    assert bad is None
    assert repacked.shape == (256, types.MXFP4.row_bytes(512))
    original = quants.dequantize_fp4(raw, scale)
    assert_same_bits(quants.dequantize(repacked, types.MXFP4), original)
    assert_same_bits(gguf_dequantize(repacked, types.MXFP4), original)


def test_a_nan_scale_cannot_be_repacked() -> None:
    raw, scale = np.zeros((3, 16), np.uint8), np.zeros((3, 1), np.uint8)
    scale[1] = 255
    assert np.isnan(quants.dequantize_fp4(raw, scale)[1]).all()
    assert fp4_to_mxfp4(raw, scale)[1] == 1


@pytest.mark.parametrize(
    ("raw", "scale"), [((2, 15), (2, 1)), ((2, 16), (2, 2)), ((2, 16), (1, 1)), ((16,), (1,))]
)
def test_fp4_shapes_must_fit(raw: tuple[int, ...], scale: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="FP4 weights are bytes"):
        quants.dequantize_fp4(np.zeros(raw, np.uint8), np.zeros(scale, np.uint8))


def test_checkpoint_tensors_must_be_bytes() -> None:
    signed: NDArray[Any] = np.zeros((2, 16), np.int8)
    with pytest.raises(ValueError, match="uint8"):
        quants.dequantize_fp4(signed, np.zeros((2, 1), np.uint8))
    with pytest.raises(ValueError, match="uint8"):
        quants.dequantize_fp8(signed, np.zeros((1, 1), np.uint8))


# Quantising


def normal_values(seed: int) -> Floats:
    """[64, 512] with rows of very different sizes, zero blocks and negative zeros."""
    random = np.random.default_rng(seed)
    values: Floats = random.standard_normal((64, 512), np.float32)
    values *= np.ldexp(np.float32(1), np.linspace(-100, 120, 64).astype(int)).astype(np.float32)[:, None]
    values[:, 32:64] = 0
    values[:, 64:96] = -0.0
    values[::2, 100] = 0
    return values


@by_written_type
def test_encodes_like_gguf(kind: WeightType) -> None:
    values = normal_values(11)
    encoded = quants.quantize(values, kind)
    assert encoded.dtype == np.uint8
    np.testing.assert_array_equal(encoded, gguf_quantize(values, kind))


@by_written_type
def test_encodes_across_chunks_like_gguf(kind: WeightType) -> None:
    values = np.random.default_rng(12).standard_normal((2, 37, 1024), np.float32)
    np.testing.assert_array_equal(quants.quantize(values, kind), gguf_quantize(values, kind))


@pytest.mark.parametrize("kind", [types.Q8_0, types.MXFP4], ids=lambda kind: kind.name)
def test_halfway_values_encode_like_gguf(kind: WeightType) -> None:
    """Quarter steps of a power-of-two scale: every tie between two codes, with both signs."""
    values = np.linspace(-8, 8, 2048, endpoint=False, dtype=np.float32)[None] * np.float32(127 / 8)
    values[:, ::32] = 127  # one block scale for all, exactly 1 in Q8_0
    np.testing.assert_array_equal(quants.quantize(values, kind), gguf_quantize(values, kind))
    np.testing.assert_array_equal(
        quants.quantize(np.rint(values * 4) / 4, kind), gguf_quantize(np.rint(values * 4) / 4, kind)
    )


@settings(deadline=None)
@given(
    kind=st.sampled_from(ENCODERS),
    values=hnp.arrays(
        np.float32,
        st.tuples(st.integers(0, 2), st.sampled_from([0, 32, 64])),
        # From 2^-120 on: below 2^-125 GGUF's own conversion of the MXFP4 scale is undefined.
        elements=st.one_of(
            st.floats(2.0**-120, 2.0**127, width=32),
            st.floats(-(2.0**127), -(2.0**-120), width=32),
            st.just(0.0),
        ),
    ),
)
def test_any_normal_values_encode_like_gguf(kind: WeightType, values: Floats) -> None:
    encoded = quants.quantize(values, kind)
    assert encoded.shape == (*values.shape[:-1], kind.row_bytes(values.shape[-1]))
    if values.size:
        np.testing.assert_array_equal(encoded, gguf_quantize(values, kind))


@settings(deadline=None)
@given(bits=hnp.arrays(np.uint32, st.integers(1, 64)))
def test_bf16_rounds_like_torch_and_keeps_nan(bits: NDArray[np.uint32]) -> None:
    values = bits.view(np.float32)
    decoded = quants.dequantize(quants.quantize(values, types.BF16), types.BF16)
    assert_same_bits(decoded, torch.from_numpy(values.copy()).bfloat16().float().numpy())


@by_written_type
def test_decoded_values_encode_to_themselves(kind: WeightType) -> None:
    """Quantising loses something once, never twice."""
    values = np.random.default_rng(13).standard_normal((8, 256), np.float32)
    once = quants.dequantize(quants.quantize(values, kind), kind)
    assert_same_bits(quants.dequantize(quants.quantize(once, kind), kind), once)


@pytest.mark.parametrize(("kind", "step"), [(types.Q8_0, 0.5 / 127 + 2.0**-11), (types.MXFP4, 0.25)], ids=str)
def test_rounding_error_is_bounded_by_the_block_maximum(kind: WeightType, step: float) -> None:
    values = np.random.default_rng(14).standard_normal((64, 256), np.float32)
    error = np.abs(quants.dequantize(quants.quantize(values, kind), kind) - values).reshape(-1, 32)
    assert (error <= step * np.abs(values).reshape(-1, 32).max(axis=1, keepdims=True)).all()


@pytest.mark.parametrize("kind", [types.Q8_0, types.MXFP4], ids=lambda kind: kind.name)
def test_blocks_below_the_smallest_scale_stay_near_zero(kind: WeightType) -> None:
    values = np.full((1, 32), 2.0**-140, np.float32)
    assert np.abs(quants.dequantize(quants.quantize(values, kind), kind)).max() <= 2.0**-127


@pytest.mark.parametrize("kind", [types.Q8_0, types.MXFP4], ids=lambda kind: kind.name)
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_block_formats_refuse_values_without_size(kind: WeightType, value: float) -> None:
    values = np.ones((2, 64), np.float32)
    values[1, 40] = value
    with pytest.raises(ValueError, match=f"{kind.name} cannot store infinities or NaN"):
        quants.quantize(values, kind)


def test_what_cannot_be_written_is_refused() -> None:
    doubles: NDArray[Any] = np.zeros((1, 32), np.float64)
    assert not quants.is_quantizable(types.IQ1_S)
    with pytest.raises(ValueError, match="cannot write IQ1_S data, only BF16, F16, F32, IQ2_XXS"):
        quants.quantize(np.zeros((1, 256), np.float32), types.IQ1_S)
    with pytest.raises(ValueError, match="32-element blocks, not 33"):
        quants.quantize(np.zeros((1, 33), np.float32), types.Q8_0)
    with pytest.raises(ValueError, match="rows of float32"):
        quants.quantize(doubles, types.Q8_0)
