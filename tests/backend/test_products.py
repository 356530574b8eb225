"""Products with weights, byte by byte: any bytes, any address, any instruction set."""

import ctypes
import json
import mmap
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from penstock.kernels import cpu
from penstock.kernels.cpu.stored import KINDS, instruction_set
from penstock.weights import types
from penstock.weights.tensor import Weight
from penstock.weights.types import WeightType
from tests.kernels.helpers import (
    WEIGHT_TYPES,
    assert_product,
    assert_same_bits,
    columns_for,
    make_weight,
    random,
)

ROOT = Path(__file__).parents[2]
by_type = pytest.mark.parametrize("kind", WEIGHT_TYPES, ids=lambda kind: kind.name)

# Where blocks keep their scales: the only bytes that are not free, because some of them mean infinity or NaN.
SCALES = {types.Q8_0: (0,), types.Q4_K: (0, 2), types.Q2_K: (80, 82), types.IQ2_XXS: (0,)}
PATTERNS = ("zeros", "ones", "random")


def fill(weight: Weight, pattern: str, seed: int = 0) -> None:
    """Every byte as the pattern says, scales of an ordinary size."""
    rng = np.random.default_rng(seed)
    shape = weight.raw.shape
    if pattern == "random":
        raw = rng.integers(0, 256, shape, dtype=np.uint8)
    else:
        raw = np.full(shape, 0 if pattern == "zeros" else 255, np.uint8)
    blocks = raw.reshape(-1, weight.kind.block_bytes)
    for at in SCALES.get(weight.kind, ()):
        blocks[:, at : at + 2] = (
            rng.choice([0.002, -0.01, 0.03], (len(blocks), 1)).astype(np.float16).view("u1")
        )
    if weight.kind in (types.F32, types.F16, types.BF16):
        blocks[:, -1] &= 0xBF  # below two: neither infinity nor NaN
    if weight.kind is types.MXFP4:
        blocks[:, 0] = rng.integers(100, 140, len(blocks))
    if weight.kind is types.FP8_E4M3:
        raw[(raw & 127) == 127] = 126  # not NaN
    weight.raw, weight.prepared = raw, None


@by_type
@pytest.mark.parametrize("pattern", PATTERNS)
def test_any_bytes(tmp_path: Path, kind: WeightType, pattern: str) -> None:
    columns = columns_for(kind, 600)
    weight = make_weight(tmp_path / "w", kind, 19, columns)
    fill(weight, pattern)
    # Inputs of full size everywhere: with these, sums of integers are as large as they can get.
    largest = torch.ones(1, columns)
    alternating = torch.tensor([1.0, -1.0]).repeat(columns)[None, :columns]
    for x in (largest, -largest, alternating, random(5, columns)):
        assert_product(cpu.linear(x, weight), x, weight)
        for row in range(len(x)):
            assert_same_bits(cpu.linear(x[row : row + 1], weight), cpu.linear(x, weight)[row : row + 1])


@pytest.mark.parametrize("scale", [0, 1, 9, 10, 60, 127, 140, 200])
@pytest.mark.parametrize("kind", [types.MXFP4, types.FP4_E2M1], ids=lambda kind: kind.name)
def test_any_power_of_two_as_scale(tmp_path: Path, kind: WeightType, scale: int) -> None:
    weight = make_weight(tmp_path / "w", kind, 5, 320)
    raw = weight.raw.copy()
    if kind is types.MXFP4:
        raw.reshape(-1, 17)[:, 0] = scale
    else:
        assert weight.scale is not None
        weight.scale = np.full_like(weight.scale, scale)
    weight.raw = raw
    x = random(3, 320)
    assert_product(cpu.linear(x, weight), x, weight)


def test_nan_weights_show(tmp_path: Path) -> None:
    x = random(4, 128)
    for rows in (1, 4):
        weight = make_weight(tmp_path / "w", types.FP8_E4M3, 4, 128)
        weight.raw = weight.raw.copy()
        weight.raw[1, 100], weight.raw[2, 127] = 0x7F, 0xFF
        assert cpu.linear(x[:rows], weight).isnan().all(0).tolist() == [False, True, True, False]
        weight = make_weight(tmp_path / "w", types.FP4_E2M1, 4, 128)
        assert weight.scale is not None
        weight.scale = weight.scale.copy()
        weight.scale[3, 1] = 255
        assert cpu.linear(x[:rows], weight).isnan().all(0).tolist() == [False, False, False, True]


@by_type
@pytest.mark.parametrize("rows", [1, 3, 6])
def test_nothing_is_read_behind_the_end(tmp_path: Path, kind: WeightType, rows: int) -> None:
    columns = columns_for(kind, 301)
    weight = make_weight(tmp_path / "w", kind, 7, columns)
    x = random(rows, columns)
    expected = cpu.linear(x, weight)
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

    weight = make_weight(tmp_path / "w", kind, 7, columns)
    weight.raw = at_the_end_of_a_page(weight.raw)
    if weight.scale is not None:
        weight.scale = at_the_end_of_a_page(weight.scale)
    assert_same_bits(cpu.linear(x, weight), expected)


# Instruction sets

COMPARE = """
import sys, torch
from pathlib import Path
from penstock.kernels import cpu
from penstock.kernels.cpu.stored import instruction_set
from tests.kernels.helpers import WEIGHT_TYPES
from tests.kernels.test_products import across_instruction_sets
assert instruction_set() == sys.argv[1]
torch.save(across_instruction_sets(Path(sys.argv[2])), sys.argv[3])
"""


def across_instruction_sets(folder: Path) -> list[torch.Tensor]:
    folder.mkdir(exist_ok=True)
    results = []
    for kind in WEIGHT_TYPES:
        for width in (33, 1100):
            columns = columns_for(kind, width)
            for pattern in (None, *PATTERNS):
                weight = make_weight(folder / "w", kind, 21, columns, pad=7)
                if pattern is not None:
                    fill(weight, pattern)
                x = random(7, columns) * torch.logspace(-3, 3, columns)
                results += [cpu.linear(x, weight), cpu.linear(x[:1], weight), cpu.linear(x[:3], weight)]
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
    done = run_with("mmx", "from penstock.kernels.cpu.stored import instruction_set\ninstruction_set()")
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
    assert set(KINDS) >= set(WEIGHT_TYPES)
