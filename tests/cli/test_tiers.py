"""Commands about a model in tiers: its plan, the line on opening, and traces replayed."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from penstock.backend.device import DeviceSpeeds
from penstock.cli import opening, plan
from penstock.cli.main import app
from penstock.engine import loader
from penstock.engine.options import EngineOptions
from penstock.errors import OptionError
from penstock.machine.gpu import Gpu
from penstock.storage.tiers import plan as tier_plan
from penstock.weights.synth import synth
from tests.cli.conftest import some_costs
from tests.storage.tiers.double import Double, smallest_vram

MIB = 1 << 20


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("tiers") / "m.gguf"
    synth(path, width="tiny", ratios=(0, 4, 128, 4), hash_layers=1, mix="q8_0")
    return path


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Double:
    found = Double()
    monkeypatch.setattr(Double, "speeds", lambda _: DeviceSpeeds(4e12, 5e10))
    monkeypatch.setattr(tier_plan, "in_memory", lambda _: False)
    monkeypatch.setattr("penstock.bench.tier_speed.kernel_costs", some_costs)
    for module in (plan, loader):
        monkeypatch.setattr(module, "choose_backend", lambda *_: found)
    return found


def run(*arguments: object) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.output


def test_a_plan_shows_every_tier(model: Path, device: Double) -> None:
    vram = smallest_vram(model, device) + 2 * MIB
    flags = ("plan", "-m", model, "--device", "cuda", "--vram", vram, "--ctx", 256, "--memory")
    shown = run(*flags, (2 << 30) + 3 * MIB)
    for words in ("tiers", "a double", "memory", "disk", "found there", "bound by", "host:"):
        assert words in shown
    assert "as random weights choose" in shown
    assert "with usual times until a run has measured" in shown
    found = json.loads(run(*flags, (2 << 30) + 3 * MIB, "--json"))
    assert found["mode"] == "tiers"
    assert 0 < found["device"] < 1
    assert 0 < found["memory"] < 1
    assert found["binds"] in found["seconds"]
    assert found["tiers"]["whole"] is False
    assert found["measured"] is False
    assert "in the mapped file" in run(*flags, "none")


@pytest.mark.parametrize("wanted", ["auto", "cuda"])
def test_a_model_that_does_not_fit_says_so_in_one_line(
    model: Path,
    device: Double,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    wanted: str,
) -> None:
    vram = smallest_vram(model, device) + 2 * MIB
    monkeypatch.setattr(opening, "read_gpus", lambda: (Gpu(0, "a double", 1 << 30, (9, 0), 1, "13.0", 4e12),))
    chosen = EngineOptions(device=wanted, vram=vram, context=256, memory=None, draft="off", learn="off")
    with opening.open_engine(model, chosen):
        pass
    (line,) = capsys.readouterr().err.splitlines()
    for words in ("of the experts fit a double", "the others are in memory", "tokens/s, bound by"):
        assert words in line


def test_a_trace_runs_again_through_the_tiers(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "m.trace"
    run("trace", "record", "-m", model, "-o", path, "--tokens", 12)
    found = json.loads(
        run("trace", "replay", path, "--tiers", "12MiB,4MiB", "--policy", "lru,lfru", "--json")
    )
    assert set(found["policies"]) == {"lru", "lfru"}
    for counted in found["policies"].values():
        assert counted["device_hits"] > 0
        assert counted["device_misses"] == counted["memory_hits"] + counted["disk_reads"]
        assert counted["disk_reads"] > 0
    shown = run("trace", "replay", path, "--tiers", "12MiB,1GiB", "--policy", "lru")
    for words in ("on the GPU", "in memory", "by the CPU", "over the link", "lru"):
        assert words in shown


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--tiers", "12MiB"), "expected VRAM,MEMORY"),
        (("--tiers", "1KiB,1GiB"), "too few experts"),
        (("--tiers", "12MiB,1KiB"), "cannot hold one expert"),
        (("--tiers", "12MiB,1GiB", "--speeds", "fast"), "--speeds is 'fast'"),
        (("--tiers", "12MiB,1GiB", "--speeds", "1,2,0"), "--speeds is"),
    ],
)
def test_mistakes(model: Path, tmp_path: Path, flags: tuple[str, ...], words: str) -> None:
    path = tmp_path / "m.trace"
    run("trace", "record", "-m", model, "-o", path, "--tokens", 2)
    with pytest.raises(OptionError, match=words):
        run("trace", "replay", path, *flags)
