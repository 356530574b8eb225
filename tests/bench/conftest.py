"""Models for all tests of measuring: a tiny one with random weights, and a published one without any."""

from pathlib import Path

import pytest

import penstock
from penstock.weights.checkpoint import Checkpoint
from penstock.weights.imagined import imagine
from penstock.weights.synth import stored_type, synth
from penstock.weights.widths import WIDTHS


@pytest.fixture(scope="package")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bench") / "m.gguf"
    synth(path, width="tiny", layers=3, ratios=(0, 4, 128), mix="q2")
    return path


@pytest.fixture(scope="package")
def small_engine(model: Path) -> penstock.Engine:
    return penstock.Engine(model, threads=1)


@pytest.fixture(scope="package")
def flash() -> Checkpoint:
    return imagine(WIDTHS["flash"].whole(), lambda plan: stored_type(plan, "q2"))
