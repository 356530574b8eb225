"""A wheel for any Linux, where there is nothing but Python."""

import importlib.util
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from release.try_wheel import try_wheel
from tests.docs.pages import ROOT

TOOLS = ("auditwheel", "build", "ziglang")


@pytest.mark.slow
@pytest.mark.skipif(
    not all(map(importlib.util.find_spec, TOOLS)),
    reason=f"needs {', '.join(TOOLS)}: `make test-slow` has them",
)
def test_a_wheel_answers_where_no_compiler_is(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    command = [sys.executable, "release/wheels.py", platform.machine(), "--no-sdist", "--out", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True)
    (wheel,) = tmp_path.iterdir()
    assert "manylinux_2_" in wheel.name
    try_wheel(wheel)
    assert "42" in capfd.readouterr().out
