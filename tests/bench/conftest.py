"""One tiny synthetic model for all tests of measuring."""

from pathlib import Path

import pytest

import penstock
from penstock.weights.synth import synth


@pytest.fixture(scope="package")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bench") / "m.gguf"
    synth(path, width="tiny", layers=3, ratios=(0, 4, 128), mix="q2")
    return path


@pytest.fixture(scope="package")
def small_engine(model: Path) -> penstock.Engine:
    return penstock.Engine(model, threads=1)
