"""The cache of compiled kernels: found again, never trusted when damaged or foreign.  Needs no GPU."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from penstock.backend.cuda.compile import SOURCES, KernelCache, Target


class FakeCompiler:
    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, name: str, source: str, headers: Mapping[str, str], options: tuple[str, ...]) -> bytes:
        self.calls += 1
        return f"{name} {len(source)} {sorted(headers)} {options} {self.calls}".encode()


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    folder = tmp_path / "kernels"
    folder.mkdir()
    (folder / "a.cu").write_text("kernel")
    (folder / "common.cuh").write_text("header")
    return folder


def make(folder: Path, sources: Path, compiler: FakeCompiler, **changes: object) -> KernelCache:
    cache = KernelCache(folder, compiler, Target("sm_90a", "13000", "13.0"), sources, say=lambda _: None)
    for name, value in changes.items():
        setattr(cache, name, value)
    return cache


def test_compiled_once(tmp_path: Path, sources: Path) -> None:
    compiler = FakeCompiler()
    first = make(tmp_path / "cache", sources, compiler).get("a.cu")
    assert make(tmp_path / "cache", sources, compiler).get("a.cu") == first
    assert compiler.calls == 1
    assert [path.suffix for path in (tmp_path / "cache").iterdir()] == [".cubin"]  # no halves of files


@pytest.mark.parametrize("what", ["source", "header", "options", "arch", "driver", "compiler"])
def test_whatever_made_it_is_part_of_its_name(tmp_path: Path, sources: Path, what: str) -> None:
    compiler = FakeCompiler()
    make(tmp_path / "cache", sources, compiler).get("a.cu")
    changes: dict[str, object] = {}
    if what == "source":
        (sources / "a.cu").write_text("another kernel")
    elif what == "header":
        (sources / "common.cuh").write_text("another header")
    elif what == "options":
        changes["options"] = ("-O1",)
    else:
        parts = {"arch": "sm_90a", "driver": "13000", "compiler": "13.0", what: "other"}
        changes["target"] = Target(parts["arch"], parts["driver"], parts["compiler"])
    make(tmp_path / "cache", sources, compiler, **changes).get("a.cu")
    assert compiler.calls == 2


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "foreign"])
def test_damaged_entries_are_built_again(tmp_path: Path, sources: Path, damage: str) -> None:
    compiler = FakeCompiler()
    cache = make(tmp_path / "cache", sources, compiler)
    cache.get("a.cu")
    (path,) = (tmp_path / "cache").iterdir()
    raw = bytearray(path.read_bytes())
    if damage == "flip":
        raw[-1] ^= 1
    elif damage == "cut":
        del raw[-3:]
    elif damage == "empty":
        raw.clear()
    else:  # a good entry, but of something else
        raw[20] ^= 1
    path.write_bytes(bytes(raw))
    again = cache.get("a.cu")
    assert compiler.calls == 2
    assert cache.get("a.cu") == again
    assert compiler.calls == 2


def test_a_folder_that_cannot_be_written_to_only_costs_time(tmp_path: Path, sources: Path) -> None:
    (tmp_path / "file").write_text("")
    compiler = FakeCompiler()
    cache = make(tmp_path / "file" / "cache", sources, compiler)
    assert cache.get("a.cu")
    assert cache.get("a.cu")
    assert compiler.calls == 2


def test_the_package_has_its_sources() -> None:
    names = {path.name for path in SOURCES.iterdir()}
    assert {"common.cuh", "dense.cu", "experts_up.cu", "attention.cu", "repack.cu"} <= names
