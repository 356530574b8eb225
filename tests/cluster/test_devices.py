"""Stages on doubles of devices with memory of their own, to which experts stream, beside stages on the CPU."""

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock.cluster.expert_worker
import penstock.cluster.worker
import penstock.engine.loader
from penstock.backend.base import Backend
from penstock.backend.cpu.backend import CpuBackend
from penstock.cluster.measure import measure_layer, memory_for_layers
from penstock.cluster.split import token_bytes
from penstock.engine.engine import Engine
from penstock.engine.options import EngineOptions
from penstock.errors import DeviceLostError, OptionError
from penstock.storage.tiers import plan as tier_plan
from penstock.weights.opening import open_checkpoint
from penstock.weights.synth import synth
from tests.cluster.machines import Hired, open_head
from tests.storage.tiers.double import Double

PROMPT = [(7 * number + 3) % 256 for number in range(90)]
VRAM = 1 << 30


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("devices") / "m.gguf"
    synth(path, width="tiny", ratios=(0, 4, 128, 4), hash_layers=1, mix="q8_0", skew=1.0)
    return path


def answers(engine: Engine) -> np.ndarray[Any, Any]:
    first, second = engine.session(), engine.session()
    found = [first.feed(PROMPT, logits="all"), second.feed(PROMPT[:40], logits="all")]
    for token in range(4):
        found += engine.feed([(first, [token + 5]), (second, [3 * token + 1, token])], logits="all")
    second.rewind(3)
    found.append(second.fork().feed([1, 2, 3], logits="all"))
    return np.concatenate([part for part in found if part is not None])


@pytest.fixture(scope="module")
def expected(model: Path) -> np.ndarray[Any, Any]:
    with Engine(model, device="cpu", context=256, threads=1, learn="off") as engine:
        return answers(engine)


def staged(
    monkeypatch: pytest.MonkeyPatch, model: Path, head: Backend, worker: Backend, **options: Any
) -> tuple[Engine, Hired]:
    """Where experts stream to a device, as if they did not fit."""
    monkeypatch.setattr(penstock.engine.loader, "choose_backend", lambda *_: head)
    monkeypatch.setattr(penstock.cluster.worker, "choose_backend", lambda *_: worker)
    monkeypatch.setattr(tier_plan, "in_memory", lambda _: False)
    shared: dict[str, Any] = {"context": 256, "exact": True, **options}
    # A device that has all experts would want them in stacks, which doubles have not.
    monkeypatch.setattr("penstock.engine.planning.plan_for_device", _full)
    engine, port = open_head(model, 2, **shared)
    hired = Hired(model, port)
    engine.load()
    return engine, hired


def _full(*_: object, **__: object) -> None:
    from penstock.errors import BudgetError

    raise BudgetError("it is full")


@pytest.mark.parametrize("mix", ["both", "head", "worker"])
def test_answers_are_the_same_bits(
    monkeypatch: pytest.MonkeyPatch, model: Path, expected: np.ndarray[Any, Any], mix: str
) -> None:
    head = CpuBackend(1) if mix == "worker" else Double(free=VRAM)
    worker = CpuBackend(1) if mix == "head" else Double(free=VRAM)
    engine, hired = staged(monkeypatch, model, head, worker)
    with engine:
        assert (engine.plan.mode == "tiers") == (mix != "worker")
        assert np.array_equal(answers(engine), expected)
        # Sequences have what the plan has for them, on each device.
        assert all(len(each.limits) == 1 for each in (head, worker) if isinstance(each, Double))
    hired.wait()
    assert hired.failure is None


def test_a_step_has_as_few_rows_as_the_device_that_takes_fewest(
    monkeypatch: pytest.MonkeyPatch, model: Path, expected: np.ndarray[Any, Any]
) -> None:
    engine, hired = staged(monkeypatch, model, CpuBackend(1), Double(rows=32, free=VRAM), prefill_chunk=64)
    with engine:
        assert engine.plan.chunk == 32
        assert np.array_equal(answers(engine), expected)
    hired.wait()


def test_a_worker_whose_device_is_lost_ends_and_the_head_goes_on(
    monkeypatch: pytest.MonkeyPatch, model: Path
) -> None:
    worker = Double(free=VRAM)
    engine, hired = staged(monkeypatch, model, CpuBackend(1), worker)
    with engine:

        def lost() -> None:
            raise DeviceLostError("the card is gone")

        monkeypatch.setattr(worker, "check", lost)
        with pytest.raises(penstock.errors.ClusterError, match="a stage is lost"):
            engine.session().feed(PROMPT[:5])
        hired.wait()
        assert isinstance(hired.failure, DeviceLostError)
        assert not engine.stats()["cluster"]["up"]


def test_a_device_counts_by_its_own_memory_and_how_fast_it_reads(model: Path) -> None:
    checkpoint, device = open_checkpoint(model), Double(free=VRAM)
    assert memory_for_layers(EngineOptions(), device) == VRAM - device.program_bytes
    assert memory_for_layers(EngineOptions(device="cuda", vram="100MiB"), device) < 100 << 20
    one = checkpoint.slice(range(1))
    assert measure_layer(checkpoint, device) == token_bytes(one) / device.speeds().memory


def test_an_expert_worker_holds_its_share_in_a_devices_memory(
    monkeypatch: pytest.MonkeyPatch, model: Path, expected: np.ndarray[Any, Any]
) -> None:
    device = Double(free=VRAM)
    monkeypatch.setattr(penstock.cluster.expert_worker, "open_backend", lambda *_: device)
    engine, port = open_head(model, 1, context=256, exact=True)
    hired = Hired(model, port, share=0.5, device="cuda")
    with engine:
        engine.load()
        while not any("experts" in each for each in engine.stats()["cluster"]["members"]):
            time.sleep(0.02)
        assert np.array_equal(answers(engine), expected)
        assert engine.stats()["cluster"]["members"][-1]["pairs"] > 0
    hired.wait()
    assert hired.failure is None


def test_an_expert_worker_on_a_device_has_as_many_as_fit_there(
    monkeypatch: pytest.MonkeyPatch, model: Path
) -> None:
    monkeypatch.setattr(penstock.cluster.expert_worker, "open_backend", lambda *_: Double(free=1 << 20))
    engine, port = open_head(model, 1, context=256)
    with engine:
        hired = Hired(model, port, share=0.5, device="cuda")
        hired.wait()
    assert "has room for no expert of every layer" in str(hired.failure)


def test_a_device_without_products_for_such_experts_is_refused(
    monkeypatch: pytest.MonkeyPatch, model: Path
) -> None:
    device = Double(free=VRAM)

    def refuse(*_: object) -> None:
        raise OptionError("no products for experts of type F32 alone; device cpu does that")

    monkeypatch.setattr(device, "held_stack", refuse)
    monkeypatch.setattr(penstock.cluster.expert_worker, "open_backend", lambda *_: device)
    engine, port = open_head(model, 1, context=256)
    with engine:
        hired = Hired(model, port, share=0.5, device="cuda")
        engine.load()
        hired.wait()
    assert "device cpu does that" in str(hired.failure)


def test_expert_workers_help_heads_on_the_cpu(monkeypatch: pytest.MonkeyPatch, model: Path) -> None:
    monkeypatch.setattr(penstock.engine.loader, "choose_backend", lambda *_: Double(free=VRAM))
    with pytest.raises(OptionError, match=r"a head with expert workers .* runs on the CPU"):
        open_head(model, 1, context=256)
