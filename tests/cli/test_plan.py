"""`penstock plan`: what a person and what a program read."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from penstock.backend.device import DeviceSpeeds
from penstock.bench.new_memory import NewMemory
from penstock.cli import plan
from penstock.cli.main import app
from penstock.engine.engine import Engine
from penstock.errors import BudgetError, OptionError, TraceError
from penstock.pocket import pocket_path
from penstock.storage.device_plan import plan_for_device
from penstock.storage.page_cache import Absent
from penstock.weights.opening import open_checkpoint
from penstock.weights.synth import synth
from tests.cli.conftest import some_costs
from tests.storage.test_device import FakeDevice

MIB = 1 << 20


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("plan") / "m.gguf"
    synth(path, width="tiny", ratios=(0, 4, 128, 4) * 3, mix="f16", vocab=20_000)
    return path


pytestmark = pytest.mark.usefixtures("hasty")


def run(*arguments: object) -> str:
    done = CliRunner().invoke(app, ["plan", *map(str, arguments)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def test_what_a_person_reads(model: Path) -> None:
    least = Engine(model, context=256).plan.smallest
    text = run("-m", model, "--memory", least + 3 * MIB, "--ctx", 256)
    for word in ("direct", "routed experts", "weights of every token", "take turns", "tokens/s", "hit rate"):
        assert word in text
    assert "no limit" in run("-m", model, "--memory", "none")


def test_a_wait_that_nobody_notices_is_not_said(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for seconds, said in ((1e-5, False), (3.0, True)):
        new = NewMemory(absent=Absent(4096, seconds))
        monkeypatch.setattr("penstock.bench.expected.new_memory", lambda *_, new=new: new)
        assert ("not in memory yet" in run("-m", model, "--memory", "none")) == said


def test_what_a_program_reads_is_what_the_engine_does(model: Path) -> None:
    least = Engine(model, context=256).plan.smallest
    found = json.loads(run("-m", model, "--memory", least + 3 * MIB, "--ctx", 256, "--json"))
    with Engine(model, memory=least + 3 * MIB, context=256) as engine:
        for name, value in engine.plan.as_dict().items():
            assert found[name] == (list(value) if isinstance(value, tuple) else value)
    assert found["context"] == 256
    for name in (
        "tokens_per_second",
        "steady_tokens_per_second",
        "prefill_tokens_per_second",
        "disk_bandwidth",
    ):
        assert found[name] > 0


def test_plans_agree_with_each_other(model: Path) -> None:
    """What was measured once is believed, until somebody asks for it to be measured again."""
    first, second = (json.loads(run("-m", model, "--memory", "none", "--json")) for _ in range(2))
    for name in ("memory_bandwidth", "disk_bandwidth", "tokens_per_second"):
        assert first[name] == second[name]


def test_several_budgets(model: Path) -> None:
    least = Engine(model, memory=None, context=256, load=False).plan.smallest
    amounts = f"{least + 4 * MIB},4GiB,1MiB"
    found = json.loads(run("-m", model, "--ctx", 256, "--budgets", amounts, "--json"))
    assert [each.get("mode") for each in found] == ["direct", "mmap", None]
    assert found[0]["budget"] == least + 4 * MIB
    assert "at least" in found[2]["problem"]
    assert "4.00 GiB" in run("-m", model, "--ctx", 256, "--budgets", amounts)
    with pytest.raises(OptionError, match="--budgets is 'much'"):
        run("-m", model, "--budgets", "much")


def test_inspect_and_plan_agree_on_what_stays(model: Path) -> None:
    for path in (model, pocket_path()):  # one of them has a draft block, which inspect leaves out
        shown = CliRunner().invoke(app, ["inspect", str(path), "--json"]).stdout
        planned = json.loads(run("-m", path, "--memory", "none", "--draft", "off", "--json"))
        assert json.loads(shown)["resident_bytes"] == planned["dense"] == planned["dense_held"]


def test_python_takes_the_budget_of_the_commands(model: Path) -> None:
    with Engine(model, load=False) as engine:
        budget = engine.plan.budget
    assert budget is not None
    found = json.loads(run("-m", model, "--json"))
    assert found["budget"] == pytest.approx(budget, rel=0.5)  # of what is free at the moment


def test_a_trace_tells_better(model: Path, tmp_path: Path) -> None:
    plan = Engine(model, context=256).plan
    memory = plan.smallest + plan.dense + plan.experts_total // 2  # not all experts fit
    options = ("-m", model, "--memory", memory, "--ctx", 256, "--streaming", "direct", "--json")
    with Engine(model, memory=memory, streaming="direct", context=256, trace=tmp_path / "t") as engine:
        session = engine.session()
        for _ in range(20):  # one token again and again: after the first time everything is there
            session.feed([7])
    uniform, traced = json.loads(run(*options)), json.loads(run(*options, "--trace", tmp_path / "t"))
    assert traced["hit_rate"] > uniform["hit_rate"]


def test_mistakes(model: Path) -> None:
    with pytest.raises(BudgetError, match="at least"):
        run("-m", model, "--memory", "20MiB")
    with pytest.raises(OptionError, match="memory"):
        run("-m", model, "--memory", "lots")


@pytest.mark.parametrize("flags", [(), ("--json",)])
def test_a_model_on_a_gpu(monkeypatch: pytest.MonkeyPatch, flags: tuple[str, ...]) -> None:
    device = FakeDevice()
    monkeypatch.setattr(FakeDevice, "speeds", lambda _: DeviceSpeeds(4e12, 5e10))
    monkeypatch.setattr(plan, "choose_backend", lambda *_: device)
    found = plan_for_device(
        open_checkpoint(pocket_path()),
        device,
        lambda n: n,
        lambda n: n,
        budget=None,
        chunk=None,
        context=256,
        kv_dtype="f16",
    )
    monkeypatch.setattr(plan, "plan_engine", lambda model, *_: (model, *found))
    shown = run("-m", pocket_path(), *flags)
    if flags:
        whole = sum(found[0].read_by_token.values())
        assert json.loads(shown)["tokens_per_second"] == pytest.approx(4e12 / whole)
    else:
        assert "all of this is the GPU's memory" in shown
        assert "256 tokens" in shown


def test_a_draft_block_that_the_engine_leaves_out_is_not_planned() -> None:
    """The pocket model has one; where its experts stream nobody asked for it."""
    for memory in (Engine(pocket_path(), load=False, memory=None).plan.smallest + 2 * MIB, "none"):
        found = json.loads(run("-m", pocket_path(), "--memory", memory, "--json"))
        (again,) = (
            json.loads(run("-m", pocket_path(), "--budgets", memory, "--json"))
            if memory != "none"
            else (found,)
        )
        engine = Engine(pocket_path(), load=False, memory=None if memory == "none" else memory)
        assert engine.checkpoint.has_draft == (memory == "none")
        assert found["dense"] == again["dense"] == engine.plan.dense


def test_budgets_are_not_those_of_a_gpu(model: Path) -> None:
    with pytest.raises(OptionError, match="--budgets compares"):
        run("-m", model, "--device", "cuda", "--budgets", "4GiB")


def test_a_trace_that_cannot_be_read_is_no_trace(model: Path, tmp_path: Path) -> None:
    """Whatever streams: nobody is told of an expectation that the trace had no part in."""
    with pytest.raises(TraceError, match="nowhere"):
        run("-m", model, "--trace", tmp_path / "nowhere")


def test_several_machines(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.bench.cluster.kernel_costs", some_costs)
    text = run("-m", model, "--cluster", "1GiB,2GiB", "--link", 10, "--latency", 0.5)
    for word in ("link 10 Gb/s, 0.5 ms", "for 2 together", "bound by", "the first machine alone"):
        assert word in text
    found = json.loads(run("-m", model, "--cluster", "1GiB,2GiB", "--json"))
    first, second = (stage["layers"] for stage in found["stages"])
    assert first[0] == 0 < first[1] == second[0] < second[1] == 12
    assert found["first_machine_alone"]["link_seconds"] == 0
    text = run("-m", model, "--cluster", "1GiB", "--expert-workers", "2GiB", "--latency", 0)
    assert "of the experts" in text
    far = json.loads(
        run("-m", model, "--cluster", "1GiB", "--expert-workers", "2GiB", "--latency", 900, "--json")
    )
    assert [each["share"] for each in far["expert_workers"]] == [0, 0]
    with pytest.raises(OptionError, match="help one that has all layers"):
        run("-m", model, "--cluster", "1GiB,1GiB", "--expert-workers", "2GiB")
    for flags, words in ((["--link", 0], "--link is 0"), (["--latency", -1], "--latency is -1")):
        with pytest.raises(OptionError, match=words):
            run("-m", model, "--cluster", "1GiB", *flags)
