"""A backend with weights of every type over temporary files, and how results are compared."""

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from penstock.backend.cpu.backend import CpuBackend
from penstock.backend.cpu.memory import Buffer
from penstock.backend.cpu.weights import CpuWeight
from penstock.backend.state import StateLayout
from penstock.weights import types
from penstock.weights.files import MappedFile
from penstock.weights.quants import quantize
from penstock.weights.random_blocks import random_blocks
from penstock.weights.tensor import FP8_BLOCK, TensorInfo, Weight
from penstock.weights.types import WeightType

# Type, and where its blocks keep float16 scales: bytes that must not be random, or weights become NaN.
HALF_SCALES = {types.Q8_0: (0,), types.Q4_K: (0, 2), types.Q2_K: (80, 82), types.IQ2_XXS: (0,)}
STORED_TYPES = (  # multiplied as they are stored
    *(types.F32, types.F16, types.BF16, types.Q8_0, types.MXFP4),
    *(types.Q4_K, types.Q2_K, types.IQ2_XXS, types.FP8_E4M3, types.FP4_E2M1),
)
DECODED_TYPES = (  # decoded inside the product
    *(types.Q4_0, types.Q5_0, types.Q3_K, types.Q5_K),
    *(types.Q6_K, types.IQ3_S, types.IQ4_NL, types.IQ4_XS),
)
WEIGHT_TYPES = STORED_TYPES + DECODED_TYPES
FLOAT_TYPES = (types.F32, types.F16, types.BF16, types.FP8_E4M3)
INTEGER_TYPES = tuple(
    kind for kind in STORED_TYPES if kind not in FLOAT_TYPES
)  # inputs become 16-bit integers
KV_DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
NO_STATE = StateLayout((), context=1, max_rewind=0, kv_dtype="f32", vocab_size=1)


# ── weights ───────────────────────────────────────────────────────────────────────────────────────────────────


def make_weight(path: Path, kind: WeightType, out: int, columns: int, seed: int = 0, pad: int = 4) -> Weight:
    """A random [out, columns] matrix behind `pad` bytes of something else."""
    rng = np.random.default_rng(seed)
    values = rng.standard_normal((out, columns), dtype=np.float32)
    nbytes = kind.row_bytes(columns) * out
    scale, tail = None, b""
    if kind is types.FP8_E4M3:
        raw = torch.from_numpy(values).to(torch.float8_e4m3fn).view(torch.uint8).numpy()
        shape = (-(-out // FP8_BLOCK), -(-columns // FP8_BLOCK))
        tail = rng.integers(124, 131, shape, dtype=np.uint8).tobytes()
    elif kind is types.FP4_E2M1:
        raw = rng.integers(0, 256, (out, columns // 2), dtype=np.uint8)
        shape = (out, columns // 32)
        tail = rng.integers(118, 124, shape, dtype=np.uint8).tobytes()
    elif kind in DECODED_TYPES:
        raw = random_blocks(kind, 1.0)(rng, nbytes // kind.block_bytes)
    elif kind in HALF_SCALES and kind is not types.Q8_0:
        raw = rng.integers(0, 256, (out, nbytes // out), dtype=np.uint8)
        blocks = raw.reshape(-1, kind.block_bytes)
        for at in HALF_SCALES[kind]:
            halves = rng.uniform(0.001, 0.1, (len(blocks), 1)).astype(np.float16)
            blocks[:, at : at + 2] = halves.view(np.uint8)
    else:
        raw = quantize(values, kind)
    path.write_bytes(bytes(pad) + raw.tobytes() + tail)
    file = MappedFile(path)
    if tail:
        scale = TensorInfo("w.scale", types.E8M0, shape, file, pad + nbytes, len(tail))
    return Weight(TensorInfo("w", kind, (out, columns), file, pad, nbytes, scale))


def columns_for(kind: WeightType, at_least: int) -> int:
    """A width that a row of this type can have, odd where it may be."""
    block = 32 if kind is types.FP4_E2M1 else kind.block
    return -(-at_least // block) * block


def placed(weight: Weight, round_input: int = 0) -> CpuWeight:
    made = CpuWeight(weight.info)
    made.described.round_input = round_input
    made.place(weight.raw, weight.scale)
    return made


class Weights:
    """Random weights, each in a file of its own, and some that are given."""

    def __init__(self, folder: Path, kind: WeightType = types.F16):
        self.folder, self.kind, self.count = folder, kind, 0

    def make(self, out: int, columns: int) -> CpuWeight:
        self.count += 1
        weight = make_weight(self.folder / f"w{self.count}", self.kind, out, columns, seed=self.count)
        return placed(weight)

    def of(self, values: Tensor) -> CpuWeight:
        """float32, with these values"""
        self.count += 1
        path = self.folder / f"w{self.count}"
        path.write_bytes(values.float().numpy().tobytes())
        info = TensorInfo("w", types.F32, tuple(values.shape), MappedFile(path), 0, 4 * values.numel())
        return placed(Weight(info))


# ── a backend ─────────────────────────────────────────────────────────────────────────────────────────────────


class Device:
    """The CPU with so many threads, and its ops over a pool of states."""

    def __init__(self, threads: int = 1, layout: StateLayout = NO_STATE, low_precision: bool = False):
        self.backend = CpuBackend(threads, low_precision)
        self.pool = self.backend.states(layout)
        self.ops = self.backend.deepseek_v4()(self.backend, self.pool)

    def out(self, *arrays: Buffer) -> tuple[Tensor, ...]:
        """Copies: what ops return is good until they run again."""
        return tuple(torch.from_numpy(self.backend.host(array).copy()) for array in arrays)


def array(x: Tensor) -> Buffer:
    return Buffer(x.contiguous().numpy())


def random(*shape: int, seed: int = 0, spread: float = 1.0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * spread


def vector(*shape: int, seed: int) -> NDArray[np.float32]:
    return random(*shape, seed=seed).numpy()


# ── comparing ─────────────────────────────────────────────────────────────────────────────────────────────────


def assert_close(found: Tensor, expected: Tensor, relative: float = 2e-6) -> None:
    """Within `relative` of the largest magnitude of the expected row."""
    assert found.shape == expected.shape
    size = expected.abs().amax(-1, keepdim=True)
    wrong = ((found - expected).abs() > relative * size + 1e-30) & ~(found == expected)
    assert not wrong.any(), (((found - expected).abs() / size).max(), found[wrong][:5], expected[wrong][:5])
    assert not (found.isnan() ^ expected.isnan()).any()


def assert_same_bits(found: Tensor, expected: Tensor) -> None:
    """Equal in every bit, NaN and signs of zeros included."""
    assert found.shape == expected.shape
    assert found.dtype == expected.dtype
    if found.dtype == torch.float32:
        found, expected = found.contiguous().view(torch.int32), expected.contiguous().view(torch.int32)
    different = int((found != expected).sum())
    assert different == 0, f"{different} of {found.numel()} values differ"


def assert_all_same(found: Sequence[Tensor], expected: Sequence[Tensor]) -> None:
    for mine, other in zip(found, expected, strict=True):
        assert_same_bits(mine, other)


def assert_rows_stand_alone(rows: int, op: Callable[[slice], tuple[Tensor, ...]], splits: list[int]) -> None:
    """op(slice of the rows) is the same bits for all rows at once, for pieces between `splits`, and one by one."""
    whole = op(slice(0, rows))
    edges = sorted({0, rows, *(s for s in splits if 0 < s < rows)})
    for cuts in (edges, list(range(rows + 1))):
        pieces = [op(slice(a, b)) for a, b in itertools.pairwise(cuts)]
        for number, expected in enumerate(whole):
            assert_same_bits(torch.cat([piece[number] for piece in pieces]), expected)


def exact_product(x: Tensor, weight: Weight) -> Tensor:
    """In float64, with the decoded weights."""
    return x.double() @ torch.from_numpy(weight.decode().copy()).double().T


def product_bound(x: Tensor, weight: Weight) -> Tensor:
    """How far a product may be from the exact one: half a step of 16 bits for every input, where inputs are
    rounded, and the rounding of float32 sums."""
    w = torch.from_numpy(weight.decode().copy()).double().abs()
    x = x.double().abs()
    sums = 3e-7 * x @ w.T
    if weight.kind not in INTEGER_TYPES:
        return sums
    blocks = torch.nn.functional.pad(x, (0, -x.shape[1] % 256)).unflatten(1, (-1, 256))
    step = (blocks.amax(-1) / 32512).clamp(min=2.0**-126).repeat_interleave(256, 1)[:, : x.shape[1]]
    # Formats with minimums subtract what is larger than the difference: their sums round a little more.
    more = 2e-6 * x @ (w + w.amax(1, keepdim=True)).T if weight.kind in (types.Q2_K, types.Q4_K) else 0
    bound: Tensor = 0.501 * step @ w.T + sums + more + 1e-37
    return bound


def assert_product(found: Tensor, x: Tensor, weight: Weight) -> None:
    wrong = (found - exact_product(x, weight)).abs() - product_bound(x, weight)
    assert not (wrong > 0).any(), f"{weight.kind.name}: {wrong.max():.2e} over the bound"
    assert found.isfinite().all()
