"""The published model in the 2-bit mix: 80 GiB, planned from its header alone."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from penstock.engine.options import EngineOptions
from penstock.errors import BudgetError
from penstock.storage.storage import plan_storage
from penstock.weights.gguf_writer import PlannedTensor, _header
from penstock.weights.opening import open_checkpoint
from penstock.weights.synth import plan_synth

GIB = 1 << 30


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole header before a hole of 80 GiB: nothing of it is on the disk."""
    plan = plan_synth(width="flash", mix="q2")

    def nothing() -> Iterator[np.ndarray]:
        raise AssertionError("only the header is wanted")

    tensors = [PlannedTensor(t.plan.name, t.kind, t.plan.shape, nothing) for t in plan.tensors]
    header = _header(plan.metadata(), tensors)
    path: Path = tmp_path_factory.mktemp("published") / "flash.gguf"
    with path.open("wb") as file:
        file.write(header)
        file.truncate(len(header) + sum(-(-tensor.nbytes // 32) * 32 for tensor in tensors))
    assert path.stat().st_size > 80 * GIB
    return path


def test_three_gigabytes_are_enough(model: Path) -> None:
    checkpoint = open_checkpoint(model)
    plan, context = plan_storage(checkpoint, EngineOptions(memory="3GiB", context=4096))
    assert plan.smallest <= 3 * GIB
    assert plan.total <= 3 * GIB
    assert context == 4096
    assert len(plan.streamed) > 20  # of 43 blocks
    with pytest.raises(BudgetError, match="at least"):
        plan_storage(checkpoint, EngineOptions(memory=plan.smallest - 1, context=4096))


def test_more_memory_goes_to_what_every_token_reads_first(model: Path) -> None:
    checkpoint = open_checkpoint(model)
    options = [EngineOptions(memory=f"{gib}GiB", context=4096, prefill_chunk=512) for gib in (4, 8, 16, 32)]
    plans = [plan_storage(checkpoint, chosen)[0] for chosen in options]
    held = [plan.dense_held for plan in plans]
    assert held == sorted(held)
    assert not plans[2].streamed
    assert [plan.hit_rate() for plan in plans] == sorted(plan.hit_rate() for plan in plans)
    assert plans[3].experts_held > 20 * GIB
