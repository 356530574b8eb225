"""Tensors read together land where they are looked for, wherever in their files they lie."""

import mmap
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.storage.bundle import NEAR, Bundle
from penstock.storage.reader import Reader
from penstock.weights import types
from penstock.weights.files import MappedFile
from penstock.weights.tensor import TensorInfo, Weight


def write(folder: Path, nbytes: int, name: str = "f") -> MappedFile:
    path = folder / name
    path.write_bytes(np.random.default_rng(0).integers(0, 256, nbytes, dtype=np.uint8).tobytes())
    return MappedFile(path)


def tensor(file: MappedFile, name: str, offset: int, rows: int, columns: int = 32) -> TensorInfo:
    return TensorInfo(name, types.F32, (rows, columns), file, offset, 4 * rows * columns)


def read(bundle: Bundle) -> np.ndarray:
    memory = np.frombuffer(mmap.mmap(-1, bundle.nbytes), np.uint8)
    reader = Reader(threads=2)
    reader.wait(reader.submit(bundle.pieces(reader, memory.ctypes.data)))
    reader.close()
    return memory


@settings(deadline=None, max_examples=25)
@given(gaps=st.lists(st.integers(0, 3 * NEAR), min_size=1, max_size=6), rows=st.integers(1, 40))
def test_everything_lands_in_its_place(tmp_path_factory: object, gaps: list[int], rows: int) -> None:
    folder: Path = tmp_path_factory.mktemp("bundle")  # type: ignore[attr-defined]
    offsets, at = [], 0
    for gap in gaps:
        at += gap
        offsets.append(at)
        at += 128 * rows
    file = write(folder, at)  # the last tensor ends with the file
    infos = [tensor(file, f"t{number}", offset, rows) for number, offset in enumerate(offsets)]
    bundle = Bundle.of(infos[::-1])
    memory = read(bundle)
    for info in infos:
        assert np.array_equal(bundle.weight(info, memory).raw, Weight(info).raw)
    apart = sum(gap > NEAR for gap in gaps[1:])
    assert len(bundle.stretches) == 1 + apart
    assert bundle.nbytes == sum(stretch.length for stretch in bundle.stretches)


def test_files_and_scales_of_their_own(tmp_path: Path) -> None:
    first, second = write(tmp_path, 50_000, "a"), write(tmp_path, 9_000, "b")
    scale = TensorInfo("s", types.E8M0, (1, 4), second, 5, 4)
    weight = TensorInfo("w", types.FP8_E4M3, (128, 300), first, 1001, 128 * 300, scale)
    bundle = Bundle.of([weight])
    memory = read(bundle)
    found, plain = bundle.weight(weight, memory), Weight(weight)
    assert np.array_equal(found.raw, plain.raw)
    assert found.scale is not None
    assert plain.scale is not None
    assert np.array_equal(found.scale, plain.scale)
