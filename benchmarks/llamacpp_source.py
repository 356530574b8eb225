"""Where llama.cpp comes from: `llama-cpp-python` built here for this CPU, or the `xllamacpp` wheel of the tests."""

import importlib.util
import subprocess
import sys
import venv
from pathlib import Path
from typing import NamedTuple

from benchmarks.children import ROOT, run

FOLDER = ROOT / "build" / "llama-cpp-python"  # an environment of its own: the project's stays as it is
CMAKE_ARGS = "-DGGML_NATIVE=ON -DLLAVA_BUILD=OFF"
NEEDED = "0.3.36"  # a release whose llama.cpp has the architecture deepseek4; older ones were not tried


class Source(NamedTuple):
    name: str  # as `engine_worker` calls it
    python: Path  # the interpreter that can import it


def build() -> None:
    """Installs llama-cpp-python from source, compiled for this very CPU.  Takes some minutes."""
    if not (FOLDER / "bin" / "python").exists():
        venv.create(FOLDER, with_pip=True)
    package = f"llama-cpp-python>={NEEDED}"
    python = str(FOLDER / "bin" / "python")
    install = [python, "-m", "pip", "install", "--upgrade", "--no-binary", "llama-cpp-python", package]
    run(install, CMAKE_ARGS=CMAKE_ARGS)


def sources() -> list[Source]:
    """What is installed, natively compiled ones first."""
    found = []
    for python in dict.fromkeys((FOLDER / "bin" / "python", Path(sys.executable))):
        if python.exists() and _imports(python, "llama_cpp"):
            found.append(Source("llama-cpp-python", python))
            break
    if importlib.util.find_spec("xllamacpp"):
        found.append(Source("xllamacpp", Path(sys.executable)))
    return found


def _imports(python: Path, module: str) -> bool:
    command = [str(python), "-c", f"import {module}"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0
