"""Products with weights: right for every stored type, any bytes, any address, any instruction set; the same bits for
any rows and threads."""

import ctypes
import json
import mmap
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from penstock.backend.cpu.backend import CpuBackend
from penstock.backend.cpu.weights import KINDS
from penstock.native.library import instruction_set
from penstock.weights import types
from penstock.weights.tensor import Weight
from penstock.weights.types import WeightType
from tests.backend.helpers import (
    DECODED_TYPES,
    HALF_SCALES,
    INTEGER_TYPES,
    STORED_TYPES,
    WEIGHT_TYPES,
    assert_product,
    assert_rows_stand_alone,
    assert_same_bits,
    columns_for,
    make_weight,
    random,
)
from tests.native.products import linear, linears
from tests.spec.low_precision import round_fp8

ROOT = Path(__file__).parents[2]
PATTERNS = ("zeros", "ones", "random")
by_type = pytest.mark.parametrize("kind", WEIGHT_TYPES, ids=lambda kind: kind.name)
by_stored_type = pytest.mark.parametrize("kind", STORED_TYPES, ids=lambda kind: kind.name)


def test_every_type_has_its_way() -> None:
    assert set(KINDS) == set(STORED_TYPES)
    assert not set(KINDS) & set(DECODED_TYPES)


@by_type
@pytest.mark.parametrize("rows", [0, 1, 2, 3, 5, 17, 64])
def test_near_the_exact_product(tmp_path: Path, kind: WeightType, rows: int) -> None:
    columns = columns_for(kind, 301)
    weight = make_weight(tmp_path / "w", kind, 37, columns, pad=3 + rows % 4)  # at any address
    x = random(rows, columns)
    assert_product(linear(x, weight), x, weight)


@by_type
def test_rows_and_threads_never_matter(tmp_path: Path, kind: WeightType) -> None:
    columns = columns_for(kind, 1500)
    weight = make_weight(tmp_path / "w", kind, 303, columns)
    x = random(70, columns)
    assert_rows_stand_alone(70, lambda rows: (linear(x[rows], weight),), [1, 3, 6, 11, 40])
    alone = linear(x, weight)
    for threads in (2, 3, 5):
        assert_same_bits(linear(x, weight, threads), alone)


@by_type
def test_weight_rows_stand_alone(tmp_path: Path, kind: WeightType) -> None:
    columns = columns_for(kind, 256)
    whole = make_weight(tmp_path / "w", kind, 35, columns)
    for rows in (1, 6):
        x = random(rows, columns)
        expected = linear(x, whole)
        for out in (1, 2, 3, 17, 33):
            part = Weight(replace(whole.info, shape=(out, columns)), whole.raw[:out].reshape(-1))
            part.scale = whole.scale
            assert_same_bits(linear(x, part), expected[:, :out].contiguous())


def test_several_weights_at_once(tmp_path: Path) -> None:
    weights = [make_weight(tmp_path / kind.name, kind, 5 + n, 256) for n, kind in enumerate(WEIGHT_TYPES)]
    for rows in (1, 9):
        x = random(rows, 256)
        for found, weight in zip(linears(x, weights, threads=3), weights, strict=True):
            assert_same_bits(found, linear(x, weight))


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
    decoded = torch.from_numpy(weight.decode().copy()).double()
    scale = x.abs().double() @ decoded.abs().T
    assert ((linear(x, weight) - x.double() @ decoded.T).abs() <= 1e-6 * scale).all()
    assert_rows_stand_alone(rows, lambda part: (linear(x[part], weight),), splits)


def test_rows_far_apart(tmp_path: Path) -> None:
    weight = make_weight(tmp_path / "w", types.F32, 12, 40)
    view = random(6, 80)[:, 20:60]
    assert_same_bits(linear(view, weight), linear(view.contiguous(), weight))


@by_type
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf, 1e38, 1e-42])
def test_one_odd_row_leaves_the_others_alone(tmp_path: Path, kind: WeightType, value: float) -> None:
    columns = columns_for(kind, 301)
    weight = make_weight(tmp_path / "w", kind, 21, columns)
    for rows in (3, 7):
        x = random(rows, columns)
        expected = linear(x, weight)
        odd = x.clone()
        odd[1, columns - 1] = value
        found = linear(odd, weight)
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
        assert_product(linear(x, weight), x, weight)
    assert_same_bits(linear(torch.zeros(2, columns), weight).abs(), torch.zeros(2, 21))


@by_type
@pytest.mark.parametrize("group", [64, 128])
def test_rounded_inputs(tmp_path: Path, kind: WeightType, group: int) -> None:
    columns = columns_for(kind, 301)
    weight, x = make_weight(tmp_path / "w", kind, 21, columns), random(5, columns)
    x[2] *= 1e-7  # below the smallest scale
    expected = linear(round_fp8(x.double(), group).float(), weight)
    assert_same_bits(linear(x, weight, round_input=group), expected)


# ── decoding inside the product ───────────────────────────────────────────────────────────────────────────────


def test_a_failure_to_decode_is_the_callers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once, by whoever checks after the step; the next product is as good as any."""
    weight, x = make_weight(tmp_path / "w", types.Q4_0, 300, 320), random(3, 320)
    expected, backend = linear(x, weight), CpuBackend(3)

    def fail(*_: object) -> None:
        raise OSError("the file is gone")

    for threads in (1, 3):
        with monkeypatch.context() as patch:
            patch.setattr(Weight, "rows", fail)
            linear(x, weight, threads)
        with pytest.raises(OSError, match="the file is gone"):
            backend.check()
        backend.check()
        assert_same_bits(linear(x, weight, threads), expected)
        backend.check()


# ── bytes ─────────────────────────────────────────────────────────────────────────────────────────────────────


def filled(weight: Weight, pattern: str, seed: int = 0) -> Weight:
    """Every byte as the pattern says; only scales are of an ordinary size, because some mean infinity or NaN."""
    rng = np.random.default_rng(seed)
    shape = weight.raw.shape
    if pattern == "random":
        raw = rng.integers(0, 256, shape, dtype=np.uint8)
    else:
        raw = np.full(shape, 0 if pattern == "zeros" else 255, np.uint8)
    blocks = raw.reshape(-1, weight.kind.block_bytes)
    for at in HALF_SCALES.get(weight.kind, ()):
        scales = rng.choice([0.002, -0.01, 0.03], (len(blocks), 1)).astype(np.float16)
        blocks[:, at : at + 2] = scales.view("u1")
    if weight.kind in (types.F32, types.F16, types.BF16):
        blocks[:, -1] &= 0xBF  # below two: neither infinity nor NaN
    if weight.kind is types.MXFP4:
        blocks[:, 0] = rng.integers(100, 140, len(blocks))
    if weight.kind is types.FP8_E4M3:
        raw[(raw & 127) == 127] = 126  # not NaN
    return Weight(weight.info, raw, weight.scale)


@by_stored_type
@pytest.mark.parametrize("pattern", PATTERNS)
def test_any_bytes(tmp_path: Path, kind: WeightType, pattern: str) -> None:
    columns = columns_for(kind, 600)
    weight = filled(make_weight(tmp_path / "w", kind, 19, columns), pattern)
    # Inputs of full size everywhere: with these, sums of integers are as large as they can get.
    largest = torch.ones(1, columns)
    alternating = torch.tensor([1.0, -1.0]).repeat(columns)[None, :columns]
    for x in (largest, -largest, alternating, random(5, columns)):
        found = linear(x, weight)
        assert_product(found, x, weight)
        for row in range(len(x)):
            assert_same_bits(linear(x[row : row + 1], weight), found[row : row + 1])


@pytest.mark.parametrize("scale", [0, 1, 9, 10, 60, 127, 140, 200])
@pytest.mark.parametrize("kind", [types.MXFP4, types.FP4_E2M1], ids=lambda kind: kind.name)
def test_any_power_of_two_as_scale(tmp_path: Path, kind: WeightType, scale: int) -> None:
    weight = make_weight(tmp_path / "w", kind, 5, 320)
    if kind is types.MXFP4:
        weight.raw = weight.raw.copy()
        weight.raw.reshape(-1, 17)[:, 0] = scale
    else:
        assert weight.scale is not None
        weight.scale = np.full_like(weight.scale, scale)
    x = random(3, 320)
    assert_product(linear(x, weight), x, weight)


def test_nan_weights_show(tmp_path: Path) -> None:
    x = random(4, 128)
    for rows in (1, 4):
        weight = make_weight(tmp_path / "w", types.FP8_E4M3, 4, 128)
        weight.raw = weight.raw.copy()
        weight.raw[1, 100], weight.raw[2, 127] = 0x7F, 0xFF
        assert linear(x[:rows], weight).isnan().all(0).tolist() == [False, True, True, False]
        weight = make_weight(tmp_path / "w", types.FP4_E2M1, 4, 128)
        assert weight.scale is not None
        weight.scale = weight.scale.copy()
        weight.scale[3, 1] = 255
        assert linear(x[:rows], weight).isnan().all(0).tolist() == [False, False, False, True]


@by_stored_type
@pytest.mark.parametrize("rows", [1, 3, 6])
def test_nothing_is_read_behind_the_end(tmp_path: Path, kind: WeightType, rows: int) -> None:
    columns = columns_for(kind, 301)
    weight = make_weight(tmp_path / "w", kind, 7, columns)
    x = random(rows, columns)
    expected = linear(x, weight)
    keep = []

    def at_the_end_of_a_page(data: NDArray[np.uint8]) -> NDArray[np.uint8]:
        page = mmap.PAGESIZE
        size = -(-data.nbytes // page) * page
        memory = mmap.mmap(-1, size + page)
        keep.append(memory)
        whole: NDArray[Any] = np.frombuffer(memory, np.uint8)
        placed = whole[size - data.nbytes : size]
        placed[:] = data.reshape(-1)
        no_access = ctypes.CDLL(None).mprotect(
            ctypes.c_void_p(whole.ctypes.data + size), ctypes.c_size_t(page), 0
        )
        assert no_access == 0
        return placed.reshape(data.shape)

    scale = None if weight.scale is None else at_the_end_of_a_page(weight.scale)
    assert_same_bits(linear(x, Weight(weight.info, at_the_end_of_a_page(weight.raw), scale)), expected)


# ── instruction sets ──────────────────────────────────────────────────────────────────────────────────────────

COMPARE = """
import sys, torch
from pathlib import Path
from penstock.native.library import instruction_set
from tests.native.test_products import across_instruction_sets
assert instruction_set() == sys.argv[1]
torch.save(across_instruction_sets(Path(sys.argv[2])), sys.argv[3])
"""


def across_instruction_sets(folder: Path) -> list[torch.Tensor]:
    folder.mkdir(exist_ok=True)
    results = []
    for kind in STORED_TYPES:
        for width in (33, 1100):
            columns = columns_for(kind, width)
            for pattern in (None, *PATTERNS):
                weight = make_weight(folder / "w", kind, 21, columns, pad=7)
                if pattern is not None:
                    weight = filled(weight, pattern)
                x = random(7, columns) * torch.logspace(-3, 3, columns)
                results += [linear(x, weight), linear(x[:1], weight), linear(x[:3], weight)]
    return results


def run_with(name: str, *command: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PENSTOCK_ISA": name, "PYTHONPATH": f"{ROOT}/src:{ROOT}"}
    return subprocess.run(
        [sys.executable, "-c", *command], cwd=ROOT, env=environment, capture_output=True, text=True
    )


def available() -> list[str]:
    flags = Path("/proc/cpuinfo").read_text() if sys.platform == "linux" else ""
    found = ["scalar"]
    if "avx2" in flags and "fma" in flags:
        found.append("avx2")
    if "avx512_vnni" in flags:
        found.append("avx512_vnni")
    if "avx512_vnni" in found and "avx512vbmi" in flags and "gfni" in flags:
        found.append("avx512")
    return found


@pytest.mark.parametrize("name", available())
def test_every_instruction_set_gives_the_same_bits(tmp_path: Path, name: str) -> None:
    done = run_with(name, COMPARE, name, str(tmp_path / "other"), str(tmp_path / "found"))
    assert done.returncode == 0, done.stderr
    expected = across_instruction_sets(tmp_path / "here")
    for a, b in zip(torch.load(tmp_path / "found"), expected, strict=True):
        assert_same_bits(a, b)


def test_an_unknown_instruction_set_is_refused() -> None:
    done = run_with("mmx", "from penstock.native.library import instruction_set\ninstruction_set()")
    assert done.returncode != 0
    assert "PENSTOCK_ISA names an instruction set that is unknown" in done.stderr


def test_the_best_instruction_set_is_taken() -> None:
    if "PENSTOCK_ISA" not in os.environ and sys.platform == "linux" and os.uname().machine == "x86_64":
        assert instruction_set() == available()[-1]


def test_the_benchmark_runs() -> None:
    command = [
        sys.executable,
        "-m",
        "benchmarks.products",
        "--types",
        "Q8_0",
        "--rows",
        "2",
        "--threads",
        "1",
    ]
    done = subprocess.run([*command, "--rounds", "1", "--json"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["results"][0]["type"] == "Q8_0"
