"""A model in three tiers: the same answer wherever experts are, budgets kept, errors without a trace."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.engine.engine import Engine
from penstock.weights.synth import synth
from tests.storage.tiers.double import Double, Logits, open_double, smallest_vram

PROMPT = [(7 * number + 3) % 256 for number in range(90)]
MIB = 1 << 20


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("tiers") / "m.gguf"
    synth(path, width="tiny", ratios=(0, 4, 128, 4), hash_layers=1, mix="q8_0", skew=1.0)
    return path


def answers(engine: Engine) -> Logits:
    """Logits of a prompt, of tokens after it, and of two sessions that go on together."""
    first, second = engine.session(), engine.session()
    found = [first.feed(PROMPT, logits="all"), second.feed(PROMPT[:40], logits="all")]
    for token in range(6):
        found += engine.feed([(first, [token + 5]), (second, [3 * token + 1, token])], logits="all")
    return np.concatenate([part for part in found if part is not None])


@pytest.fixture(scope="module")
def expected(model: Path) -> Logits:
    with Engine(model, device="cpu", context=256, threads=1) as engine:
        return answers(engine)


@pytest.fixture(scope="module")
def least(model: Path) -> int:
    return smallest_vram(model, Double())


def tiered(monkeypatch: pytest.MonkeyPatch, model: Path, vram: int, **options: Any) -> tuple[Engine, Double]:
    device = Double()
    engine = open_double(monkeypatch, model, device, vram=vram, **options)
    assert engine.plan.mode == "tiers"
    return engine, device


@pytest.mark.parametrize("extra", [0, 1, 3])
@pytest.mark.parametrize("memory", [None, "small"])
def test_exact_gives_the_same_bits_whatever_the_tiers_hold(
    monkeypatch: pytest.MonkeyPatch, model: Path, expected: Logits, least: int, extra: int, memory: str | None
) -> None:
    options: dict[str, Any] = {"exact": True, "memory": memory}
    if memory is not None:
        options["memory"] = (2 << 30) + 4 * MIB
    engine, _ = tiered(monkeypatch, model, least + extra * MIB // 2, **options)
    with engine:
        assert engine.plan.tiers is not None
        assert engine.plan.tiers.whole == (memory is None)
        assert np.array_equal(answers(engine), expected)
        assert np.array_equal(answers(engine), expected)
        stats = engine.stats()
    assert stats["on_host"] == 0
    assert stats["device_hits"] > 0
