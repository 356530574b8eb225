"""Routed experts straight from the file."""

from pathlib import Path

import pytest
import torch

from penstock.storage.store import MappedExperts
from penstock.kernels import reference
from penstock.weights.checkpoint import Checkpoint
from penstock.weights.opening import open_checkpoint
from penstock.weights.synth import synth
from penstock.weights.tensor import Weight

IDS = torch.tensor([[3, 1], [1, 7], [3, 1]])
WEIGHTS = torch.tensor([[0.9, 0.6], [1.1, 0.4], [0.2, 1.3]])


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    path: Path = tmp_path_factory.mktemp("experts") / "m.gguf"
    synth(path, width="tiny", layers=1, ratios=(4,), mix="q8_0")
    return open_checkpoint(path)


def one_by_one(checkpoint: Checkpoint, x: torch.Tensor, rounded: bool) -> torch.Tensor:
    """Row by row, expert by expert, in float64 where nothing is rounded on purpose."""
    out = torch.zeros(x.shape, dtype=torch.float64)
    for row, (ids, weights) in enumerate(zip(IDS.tolist(), WEIGHTS.tolist(), strict=True)):
        for expert, weight in zip(ids, weights, strict=True):
            gate, up, down = (
                torch.from_numpy(Weight(checkpoint.expert("blk.0", expert, part)).decode()).double()
                for part in ("gate", "up", "down")
            )
            g, u = (gate @ x[row].double()).clamp(max=10), (up @ x[row].double()).clamp(-10, 10)
            inner = g * torch.sigmoid(g) * u * weight
            if rounded:
                inner = reference.round_fp8(inner.float().unsqueeze(0), 128)[0].double()
            out[row] += down @ inner
    return out


@pytest.mark.parametrize("rounded", [False, True])
def test_weighted_sum_of_the_chosen_experts(checkpoint: Checkpoint, rounded: bool) -> None:
    x = torch.randn(3, checkpoint.config.hidden, generator=torch.Generator().manual_seed(0))
    store = MappedExperts(checkpoint, reference, simulate_low_precision=rounded)
    found = store.run("blk.0", x, IDS, WEIGHTS, 10.0)
    assert torch.allclose(found.double(), one_by_one(checkpoint, x, rounded), atol=2e-5)
    other = MappedExperts(checkpoint, reference, simulate_low_precision=not rounded).run(
        "blk.0", x, IDS, WEIGHTS, 10.0
    )
    assert not torch.allclose(found, other, atol=1e-3)


def test_an_expert_named_twice_counts_twice(checkpoint: Checkpoint) -> None:
    x = torch.randn(1, checkpoint.config.hidden, generator=torch.Generator().manual_seed(1))
    store = MappedExperts(checkpoint, reference)
    twice = store.run("blk.0", x, torch.tensor([[2, 2]]), torch.tensor([[0.5, 0.25]]), 10.0)
    once = store.run("blk.0", x, torch.tensor([[2]]), torch.tensor([[0.75]]), 10.0)
    assert torch.allclose(twice, once, atol=1e-6)
