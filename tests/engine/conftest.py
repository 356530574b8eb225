"""A model so small that tests may run many of its steps, steps that are computed elsewhere, and a memory group."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.engine.engine import Engine
from penstock.weights.synth import synth
from tests.engine.elsewhere import Steps

GROUPS = Path("/sys/fs/cgroup/memory")


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


@pytest.fixture
def group() -> Iterator[Path]:
    """A memory group of the first version that this test may fill."""
    folder = GROUPS / f"penstock-test-{os.getpid()}"
    try:
        folder.mkdir()
    except OSError:
        pytest.skip("memory groups cannot be made here")
    try:
        yield folder
    finally:
        folder.rmdir()
