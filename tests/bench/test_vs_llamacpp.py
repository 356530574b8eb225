"""The comparison with llama.cpp: both engines obey the same orders, and one alone is no error."""

import json
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks import llamacpp_source, vs_llamacpp
from benchmarks.machine import Neighbours, describe
from benchmarks.vs_llamacpp import Result, arguments, run
from penstock.errors import OptionError

SMALL = ["--repeat", "2", "--decode", "2", "--prompt", "3", "--prefill", "8", "--threads", "1"]


@pytest.fixture(autouse=True)
def _small_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vs_llamacpp, "read_bandwidth", lambda _: 10e9)


def measure(model: Path, folder: Path, *flags: str) -> list[dict[str, object]]:
    report = folder / "r.json"
    options = arguments().parse_args(["--model", str(model), "--json", str(report), *SMALL, *flags])
    run(options, Console(quiet=True))
    results: list[dict[str, object]] = json.loads(report.read_text())["results"]
    return results


def test_both_take_turns(model: Path, tmp_path: Path) -> None:
    results = measure(model, tmp_path, "--llama", "xllamacpp", "--only", "decode,prefill")
    assert [result["measure"] for result in results] == ["decode", "prefill"]
    for result in results:
        for engine in ("penstock", "llama"):
            speeds = result[engine]
            assert isinstance(speeds, list)
            assert len(speeds) == 2
            assert min(speeds) > 0
        assert str(result["llama_version"]).startswith("xllamacpp 2026.")


def test_without_llamacpp_penstock_runs_alone(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(llamacpp_source, "sources", list)
    (result,) = measure(model, tmp_path, "--only", "start")
    assert result["llama"] == []
    assert isinstance(result["penstock"], list)
    assert len(result["penstock"]) == 2


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--mix", "q3"], "--mix: there is no 'q3'"),
        (["--only", "decode,sleep"], "--only: there is no 'sleep'"),
        (["--threads", "1,x"], "--threads is '1,x'"),
        (["--repeat", "0"], "--repeat is '0'"),
    ],
)
def test_mistakes(flags: list[str], message: str, model: Path, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=message):
        measure(model, tmp_path, *flags)


@pytest.mark.parametrize(("kind", "ratio"), [("decode", "2.00×"), ("start", "0.50×")])
def test_a_ratio_above_one_is_always_in_our_favour(kind: str, ratio: str) -> None:
    result = Result("f", kind, 1, [2.0, 4.0, 9.0], [1.0, 2.0, 3.0], "", None, 1.0, 0.0)
    assert vs_llamacpp._ratio(result) == ratio


def test_the_machine_is_described() -> None:
    assert describe()["cores"]
    assert Neighbours().cores() >= 0
