"""Models larger than memory: what becomes of the numbers, and that mistakes are named."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from benchmarks import cgroup, streaming_cases, trial
from benchmarks.children import ChildError
from benchmarks.contest import PENSTOCK
from benchmarks.llamacpp_source import Source
from benchmarks.streaming import arguments, cells, model_file, plot, run
from benchmarks.streaming_cases import (
    CASES,
    GIB,
    LLAMA,
    SWEEP,
    Bench,
    Beside,
    Counts,
    Means,
    Row,
    ratio,
    share_of_disk,
)
from benchmarks.trial import Entrant, Order, Setting, Trial, in_turn
from penstock.errors import OptionError
from penstock.weights.synth import plan_synth

COUNTS = Counts(threads=1, repeat=2, prompt=3, decode=4, prefill=8)


class Stage:
    """In place of processes: everyone answers at once, by the limit and the orders."""

    def __init__(self) -> None:
        self.digest = "same"
        self.failing: set[str] = set()

    def hold(
        self,
        entrant: Entrant,
        _: Setting,
        orders: dict[str, Order],
        between: Callable[[], float] | None = None,
    ) -> Trial:
        if entrant.name in self.failing:
            raise ChildError("Traceback\nOptionError: memory is too small")
        step = 1.0 if entrant.name == LLAMA else 0.1
        answers: dict[str, dict[str, Any]] = {}
        for name, order in orders.items():
            steps = len(order.get("rows") or order["ids"]) if order["do"] != "prefill" else 1
            counted = {"disk_bytes": 4e9, "read_seconds": 1.0}
            timing = {"seconds": 2.0, "step_s": [2 * step] * (steps // 2) + [step] * (steps - steps // 2)}
            answers[name] = timing | {"counted": counted, "sha256": self.digest}
        peak = entrant.limit and entrant.limit // 2
        plan = {"experts_held": 1, "experts_total": 20}
        return Trial(
            entrant.name,
            answers,
            1.0,
            entrant.limit,
            peak,
            0,
            0,
            0.0,
            plan,
            [between() for _ in orders] if between else [],
        )


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Stage:
    acting = Stage()
    monkeypatch.setattr(streaming_cases, "hold", acting.hold)
    monkeypatch.setattr(streaming_cases, "best_bandwidth", lambda *_, **__: 4e9)
    return acting


def rows(case: str) -> list[Row]:
    means = Means(Source("llama-cpp-python", Path("python")), groups=True)
    return list(CASES[case].run(Bench(Path("m.gguf"), 512, COUNTS, means, lambda _: None)))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.usefixtures("stage")
def test_every_case_keeps_its_promises(case: str) -> None:
    *_, budget, bits = rows(case)
    assert (budget.measure, budget.found, budget.met) == ("peak of the group / memory", 0.5, True)
    assert (bits.measure, bits.found, bits.met) == ("share of runs with the same bits", 1.0, True)


@pytest.mark.usefixtures("stage")
def test_the_first_half_is_cold_and_the_second_steady() -> None:
    cold, steady, resident, *_ = rows("limited")
    assert cold.values == {"Penstock, 3.5 GiB": [5.0, 5.0], LLAMA: [0.5, 0.5]}
    assert steady.values == {"Penstock, 3.5 GiB": [10.0, 10.0], LLAMA: [1.0, 1.0]}
    assert (steady.found, steady.target, steady.met) == (10.0, "≥ 4", True)
    assert (resident.found, resident.met) == (1.0, True)


def test_other_bits_are_noticed(stage: Stage) -> None:
    means = Means(None, groups=True)
    bench = Bench(Path("m.gguf"), 512, COUNTS, means, lambda _: None)
    assert bench.reference == "same"
    stage.digest = "other"
    *_, bits = CASES["largest"].run(bench)
    assert (bits.found, bits.met) == (0.0, False)


def test_who_fails_misses_the_target_and_the_rest_goes_on(stage: Stage) -> None:
    stage.failing = {"Penstock, 3.5 GiB"}
    _, steady, resident, budget, bits = rows("limited")
    assert (budget.found, budget.met) == (None, False)
    assert (steady.found, steady.met) == (None, False)
    assert (resident.found, resident.met) == (None, False)
    assert bits.met


def test_without_llamacpp_a_target_is_neither_met_nor_missed() -> None:
    row = ratio("c", "m", {"Penstock": [2.0]}, at_least=4)
    assert (row.found, row.met) == (None, None)
    assert cells(row) == ["c", "m", "Penstock: 2.00 (2.00–2.00)", "", "", "≥ 4", "–"]


def test_a_real_engine_obeys_and_is_counted(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "DROP_CACHES", Path("/proc/none"))  # others need what they have cached
    try:
        grouped = bool(cgroup.find_parent())
    except cgroup.NoMemoryGroups:
        grouped = False
    bench = Bench(model, 512, COUNTS, Means(None, grouped), lambda _: None)
    entrant = Entrant("Penstock", PENSTOCK, GIB if grouped else None, {"context": 256}, grouped)
    orders = {"decode": bench.decode(), "together": bench.together(), "digest": bench.digest()}
    found = [trial.hold(entrant, bench.setting, orders) for _ in range(2)]
    for each in found:
        assert [len(each.answers[name]["step_s"]) for name in ("decode", "together")] == [4, 4]
        assert not grouped or 0 < (each.peak or 0) <= GIB
    assert found[0].answers["digest"] == found[1].answers["digest"]


@pytest.mark.usefixtures("stage")
def test_the_sweep_becomes_a_picture() -> None:
    picture = plot(rows("sweep"), "title")
    assert picture is not None
    assert picture.count("<circle") == len(SWEEP)
    assert plot(rows("limited"), "title") is None


@pytest.mark.parametrize(
    ("shares", "found", "met"),
    [((0.7, 0.9, 0.95), 0.9, True), ((0.7, 0.8, 0.9), 0.8, False), ((1.2,), 1.2, None)],
)
def test_nobody_reads_faster_than_the_disk(shares: tuple[float, ...], found: float, met: bool | None) -> None:
    row = share_of_disk(
        "GB/s", "Penstock", [Beside(share * pace, pace) for pace, share in enumerate(shares, 2)]
    )
    assert row.found == pytest.approx(found)
    assert row.met is met


@pytest.mark.usefixtures("stage")
def test_the_disk_is_measured_around_every_stretch(monkeypatch: pytest.MonkeyPatch) -> None:
    paces = iter(range(2, 100, 2))
    monkeypatch.setattr(streaming_cases, "best_bandwidth", lambda *_, **__: next(paces) * 1e9)
    reading, *_ = rows("disk")
    assert reading.values["disk alone"] == [3, 5, 7, 9, 13, 15, 17, 19]  # two runs, each measured once more


def test_who_goes_first_changes() -> None:
    one, two = (Entrant(name, PENSTOCK) for name in "ab")
    assert [entrant.name for entrant in in_turn([one, two], 2)] == ["a", "b", "b", "a"]


def test_a_file_stays_only_if_it_was_there_or_is_kept(tmp_path: Path) -> None:
    plan, console = plan_synth(), Console(quiet=True)
    options = arguments().parse_args(["--folder", str(tmp_path)])
    with model_file(plan, options, console) as path:
        assert path.exists()
    assert not path.exists()
    options.keep = True
    with model_file(plan, options, console):
        pass
    options.keep = False
    with model_file(plan, options, console):
        pass
    assert path.exists()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--only", "limited,tiny"], "--only: there is no 'tiny'"),
        (["--repeat", "0"], "--repeat is '0'"),
        (["--decode", "1"], "--decode is 1, expected at least 2"),
    ],
)
def test_mistakes(flags: list[str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        run(arguments().parse_args(flags), Console(quiet=True))


def test_without_groups_what_needs_them_is_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def nowhere() -> cgroup.Parent:
        raise cgroup.NoMemoryGroups("no memory control group can be made: somewhere is not writable")

    monkeypatch.setattr(cgroup, "find_parent", nowhere)
    assert run(arguments().parse_args(["--only", "limited,batch"]), Console()) == []
    said = " ".join(capsys.readouterr().out.split())
    assert "somewhere is not writable; left out: limited, batch, sweep, large, largest" in said
