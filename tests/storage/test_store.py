"""Routed experts straight from the file."""

from pathlib import Path

import pytest
import torch

from penstock.model.deepseek_v4.description import Description
from penstock.storage.dense import DenseWeights
from penstock.storage.store import MappedExperts
from penstock.weights.checkpoint import Checkpoint
from penstock.weights.opening import open_checkpoint
from penstock.weights.synth import synth
from tests.backend.helpers import Device, array, assert_close, random
from tests.spec.experts import Expert, experts

IDS = torch.tensor([[3, 1], [1, 7], [3, 1]])
WEIGHTS = torch.tensor([[0.9, 0.6], [1.1, 0.4], [0.2, 1.3]])
PARTS = ("gate", "up", "down")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    path: Path = tmp_path_factory.mktemp("experts") / "m.gguf"
    synth(path, width="tiny", layers=1, ratios=(4,), mix="f16")
    return open_checkpoint(path)


@pytest.mark.parametrize("rounded", [False, True])
def test_the_right_experts_with_the_right_weights(checkpoint: Checkpoint, rounded: bool) -> None:
    device = Device(low_precision=rounded)
    backend, dense = device.backend, DenseWeights(checkpoint, device.backend)
    spec = Description(checkpoint, backend, dense).experts("blk.0", checkpoint.config.layers[0])
    store = MappedExperts(checkpoint, backend)
    x = random(3, checkpoint.config.hidden)
    with store.acquire("blk.0", array(IDS)) as lease:
        assert lease.resident
        (found,) = device.out(device.ops.experts(spec).run(array(x), array(IDS), array(WEIGHTS), lease))
    routed = {
        number: Expert(*(backend.weight(checkpoint.expert("blk.0", number, part)) for part in PARTS))
        for number in (1, 3, 7)
    }
    shared = Expert(*(dense.weight(f"blk.0.ffn_{part}_shexp.weight") for part in PARTS))
    expected = experts(x.double(), IDS, WEIGHTS.double(), routed, shared, spec, rounded)
    assert_close(found, expected, 2e-5)


def test_what_was_asked_for_is_known(checkpoint: Checkpoint) -> None:
    store = MappedExperts(checkpoint, Device().backend)
    for ids in (IDS, IDS[:1]):
        store.acquire("blk.0", array(ids))
    found = store.map()
    assert found.present.all()  # which of them really are is known to the system alone
    assert (found.heat[0] > 0).nonzero()[0].tolist() == [1, 3, 7]
