"""The published model in the 2-bit mix: 80 GiB, planned from its header alone."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from penstock.engine.engine import Engine
from penstock.errors import BudgetError
from penstock.weights.gguf_writer import PlannedTensor, write_outline
from penstock.weights.synth import plan_synth

GIB = 1 << 30


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole header before a hole of 80 GiB: nothing of it is on the disk."""
    plan = plan_synth(width="flash", mix="q2")

    def nothing() -> Iterator[np.ndarray]:
        raise AssertionError("only the header is wanted")

    tensors = [PlannedTensor(t.plan.name, t.kind, t.plan.shape, nothing) for t in plan.tensors]
    path: Path = tmp_path_factory.mktemp("published") / "flash.gguf"
    write_outline(path, plan.metadata(), tensors)
    assert path.stat().st_size > 80 * GIB
    return path


def opened(model: Path, **options: object) -> Engine:
    """Planned, and nothing loaded."""
    return Engine(model, load=False, context=4096, **options)  # type: ignore[arg-type]


def test_three_gigabytes_are_enough(model: Path) -> None:
    engine = opened(model, memory="3GiB")
    plan = engine.plan
    assert plan.smallest <= 3 * GIB
    assert plan.total <= 3 * GIB
    assert engine.context == 4096
    assert len(plan.streamed) > 20  # of 43 blocks
    with pytest.raises(BudgetError, match="at least"):
        opened(model, memory=plan.smallest - 1)


def test_more_memory_goes_to_what_every_token_reads_first(model: Path) -> None:
    plans = [opened(model, memory=f"{gib}GiB", prefill_chunk=512).plan for gib in (4, 8, 16, 32)]
    held = [plan.dense_held for plan in plans]
    assert held == sorted(held)
    assert not plans[2].streamed
    assert [plan.hit_rate() for plan in plans] == sorted(plan.hit_rate() for plan in plans)
    assert plans[3].experts_held > 20 * GIB
