"""A model so small that tests may run many of its steps, and steps that are computed elsewhere."""

from pathlib import Path

import pytest

from penstock.engine.engine import Engine
from penstock.weights.synth import synth
from tests.engine.elsewhere import Steps


@pytest.fixture(scope="session")
def every_attention(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four layers: one of each kind of attention, and one kind twice."""
    path: Path = tmp_path_factory.mktemp("engine") / "m.gguf"
    synth(path, width="tiny", ratios=(0, 4, 128, 4), mix="q8_0")
    return path


@pytest.fixture
def steps(engine: Engine) -> Steps:
    """Of the test's engine, whose logits are not on the host."""
    return Steps(engine)
