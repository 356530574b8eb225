"""What the build says where something is missing."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "penstock" / "native"  # what is installed has no sources

pytestmark = pytest.mark.skipif(
    not shutil.which("cmake") or not shutil.which("make"), reason="needs cmake and make"
)


def configure(folder: Path, compiler: str | None = None, **environment: str) -> str:
    """What cmake complains of where no compiler is in the path, or where this script is the first."""
    programs = folder / "bin"
    programs.mkdir()
    for name in ("cmake", "make"):
        (programs / name).symlink_to(str(shutil.which(name)))
    if compiler is not None:
        (programs / "c++").write_text(compiler)
        (programs / "c++").chmod(0o755)
    path = str(programs) if compiler is None else f"{programs}:{os.environ['PATH']}"
    done = subprocess.run(
        ["cmake", "-S", str(SOURCE), "-B", str(folder / "build"), "-G", "Unix Makefiles"],
        env={"PATH": path, "HOME": str(folder), **environment},
        capture_output=True,
        text=True,
    )
    assert done.returncode != 0
    return " ".join(done.stderr.split())


def test_a_missing_compiler_is_named(tmp_path: Path) -> None:
    said = configure(tmp_path)
    assert "There is no C++ compiler here. Penstock's kernels need g++ 11 or clang 14, or newer" in said
    assert "apt install g++" in said


def test_a_compiler_that_is_asked_for_and_missing_is_named(tmp_path: Path) -> None:
    said = configure(tmp_path, CXX="clang++-1 -stdlib=libc++")
    assert "CXX is clang++-1, which is not here. Penstock's kernels need g++ 11 or clang 14, or newer" in said


@pytest.mark.skipif(not shutil.which("g++"), reason="needs g++ to pretend with")
def test_a_compiler_that_is_too_old_is_named(tmp_path: Path) -> None:
    old = f'#!/bin/sh\nexec {shutil.which("g++")} -U__GNUC__ -D__GNUC__=10 "$@"\n'
    said = configure(tmp_path, old)
    assert "c++ is GNU 10." in said
    assert "need g++ 11 or clang 14, or newer" in said
