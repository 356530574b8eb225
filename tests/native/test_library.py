"""Finding and loading the native library."""

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest

import penstock
from penstock.errors import PenstockError
from penstock.native import library
from penstock.native.structs import MIRRORED

ROOT = Path(__file__).parents[2]


def test_a_missing_library_says_how_to_build_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(penstock, "__path__", [str(tmp_path)])
    with pytest.raises(PenstockError, match=r"not been built[\s\S]*cmake -S src/penstock/native"):
        library.find()


def test_a_damaged_library_says_so(tmp_path: Path) -> None:
    (tmp_path / library.NAME).write_bytes(b"not a library")
    with pytest.raises(PenstockError, match="cannot be loaded"):
        library.load(tmp_path / library.NAME)


def test_another_interface_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "ABI", library.ABI + 1)
    with pytest.raises(PenstockError, match="interface version"):
        library.load(library.find())


@pytest.mark.parametrize("name", MIRRORED)
def test_a_structure_of_another_size_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the library had been built before or after a field was added."""

    longer = type("Longer", (MIRRORED[name],), {"_fields_": (("more", ctypes.c_int64),)})
    monkeypatch.setitem(MIRRORED, name, longer)
    with pytest.raises(PenstockError, match=rf"{name} has \d+ bytes, expected \d+[\s\S]*another version"):
        library.load(library.find())


def test_a_structure_that_the_library_lacks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MIRRORED, "ps_nothing", MIRRORED["ps_weight"])
    with pytest.raises(PenstockError, match="ps_nothing has 0 bytes"):
        library.load(library.find())


SANITIZED = """
import sys
from pathlib import Path
from penstock.native import library
library.find = lambda: Path(sys.argv[1])
assert library.native()._name == sys.argv[1]
import pytest
sys.exit(pytest.main(["-q", "-x", "-p", "no:cacheprovider", *sys.argv[2:]]))
"""
WATCHED = (
    "native/test_products.py",
    *(f"backend/test_{name}.py" for name in ("rows", "experts", "attention")),
)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="preloads the sanitizer's run-time library")
def test_sanitizers_find_nothing(tmp_path: Path) -> None:
    """The same tests against a build that watches every access."""
    source = Path(penstock.__path__[0]) / "native"
    configure = ["cmake", "-S", str(source), "-B", str(tmp_path), "-DPENSTOCK_SANITIZE=ON"]
    subprocess.run(configure, check=True, capture_output=True)
    subprocess.run(["cmake", "--build", str(tmp_path)], check=True, capture_output=True)
    asan = subprocess.run(["g++", "-print-file-name=libasan.so"], check=True, capture_output=True, text=True)
    environment = {
        **os.environ,
        "LD_PRELOAD": asan.stdout.strip(),
        "ASAN_OPTIONS": "detect_leaks=0",
        "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1",
    }
    tests = [str(ROOT / "tests" / name) for name in WATCHED]
    command = [sys.executable, "-c", SANITIZED, str(tmp_path / library.NAME), *tests]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
