"""What commands measure takes seconds and need not be known in most tests."""

import pytest

from penstock.bench.costs import Costs, Curve, LayerCosts
from penstock.bench.missing_weights import Handling
from penstock.weights.checkpoint import Checkpoint

CURVE = Curve((1, 64), (1e-3, 2e-2))


def some_costs(checkpoint: Checkpoint, *_: object) -> Costs:
    layer = LayerCosts(CURVE, 0.0, CURVE, CURVE, 0.0, 0.0)
    return Costs((layer,) * checkpoint.config.layer_count, 1e-3, CURVE)


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every machine computes alike; the disk is measured in a moment."""
    monkeypatch.setattr("penstock.bench.expected.kernel_costs", some_costs)
    monkeypatch.setattr("penstock.bench.expected.handling", lambda *_: Handling())
    monkeypatch.setattr("penstock.bench.expected.read_bandwidth", lambda *_: 1e10)
    monkeypatch.setattr("penstock.storage.read_speed.SECONDS", 0.001)
    monkeypatch.setattr("penstock.storage.read_speed.PAUSE", 0.0)
    monkeypatch.setattr("penstock.machine.measured_once.BUSY", 1e9)
    monkeypatch.setattr("penstock.bench.expectation.OTHER_PROMPTS", ())
    monkeypatch.setattr("penstock.bench.expectation.ANSWER", 8)
    monkeypatch.setattr("penstock.bench.expectation.DRAWS", 1)
