"""A benchmark without the packages it needs says which extra has them."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Runs a benchmark in an environment that lacks a package.
PROGRAM = """
import runpy, sys
missing, name, sys.argv[1:] = sys.argv[1], sys.argv[2], sys.argv[3:]

class Finder:
    def find_spec(self, found, path=None, target=None):
        if found.partition(".")[0] == missing:
            raise ModuleNotFoundError(f"No module named {found!r}", name=found)

sys.meta_path.insert(0, Finder())
runpy.run_module(name, run_name="__main__", alter_sys=True)
"""


@pytest.mark.parametrize(
    ("missing", "name", "extra"),
    [
        ("httpx", "benchmarks.serve", "[dev]"),
        ("torch", "benchmarks.gpu_kernels", "[dev]"),
    ],
)
def test_the_extra_is_named(missing: str, name: str, extra: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, missing, name],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert f"pip install --editable '.{extra}' brings it" in done.stderr
    assert "Traceback" not in done.stderr
