"""`penstock trace` as a person uses it."""

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from penstock.cli.main import app
from penstock.errors import OptionError, PenstockError, TraceError
from penstock.storage.policies import POLICIES
from penstock.storage.replay import OPTIMUM
from penstock.storage.trace import TraceHeader, TraceWriter

EXPERT = 1 << 20


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two blocks of 16 experts; 3 and 5 are needed by every token, the others in turn."""
    path = tmp_path_factory.mktemp("trace") / "t.trace.gz"
    with TraceWriter(path, TraceHeader("f1", {"blk.0": EXPERT, "blk.1": EXPERT}, 16)) as writer:
        for step in range(60):
            for block in range(2):
                writer.write(step, block, 1, sorted({3, 5, 6 + step % 10}))
    return path


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "140")
    monkeypatch.setenv("NO_COLOR", "1")


def trace(*arguments: object) -> Any:
    return app(["trace", *map(str, arguments)], standalone_mode=False)


def test_a_table_of_hit_rates(recorded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace("replay", recorded, "--size", "5MiB,4MiB,75%")
    lines = capsys.readouterr().out.splitlines()
    assert "360 uses of experts in 120 requests; all experts: 32.00 MiB" in lines[0]
    for column in ("4.00 MiB (12%)", "5.00 MiB (16%)", "24.00 MiB (75%)"):
        assert column in lines[1]
    rows = [line.split() for line in lines[2:-1]]
    assert [row[0] for row in rows] == [*POLICIES, OPTIMUM]
    assert all(
        row[-2:] == ["*", "93.3%"] for row in rows if row[0] == "lru"
    )  # all fit; the simplest is marked
    assert sum(row.count("*") for row in rows) == 3
    assert "*" not in rows[-1]


def test_json(recorded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace("replay", recorded, "--policy", "lru, hot", "--size", f"{5 * EXPERT}", "--json")
    report = json.loads(capsys.readouterr().out)
    results = {result["policy"]: result for result in report["results"]}
    assert list(results) == ["lru", "hot", OPTIMUM]
    assert report["best"] == {str(5 * EXPERT): "hot"}
    hot = results["hot"]
    assert hot["hits"] + hot["misses"] == report["accesses"] == 360
    assert hot["bytes_read"] == hot["misses"] * EXPERT
    assert [hot["hits"], hot["misses"]] == [sum(hot["block_hits"]), sum(hot["block_misses"])]
    assert results["lru"]["hits"] < hot["hits"] <= results[OPTIMUM]["hits"]


def test_a_trace_that_was_cut_off(recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cut = tmp_path / "cut.gz"
    cut.write_bytes(recorded.read_bytes()[:-12])
    trace("replay", cut, "--policy", "lru")
    assert "note: line" in capsys.readouterr().out


@pytest.mark.parametrize("sizes", [[], ["--size", "8MiB"]])  # many points, or one
def test_a_picture(recorded: Path, tmp_path: Path, sizes: list[str]) -> None:
    picture = tmp_path / "curve.svg"
    trace("plot", recorded, "-o", picture, *sizes)
    words = {element.text for element in ElementTree.parse(picture).iter() if element.text}
    assert {*POLICIES, OPTIMUM, "t.trace.gz"} <= words


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        (
            ["replay", "FILE", "--policy", "lru,fifo"],
            OptionError,
            "--policy: 'fifo' is unknown, expected all or some of",
        ),
        (["replay", "FILE", "--size", "much"], OptionError, "--size is 'much', expected an amount such as"),
        (["replay", "FILE", "--size", "4MiB,"], OptionError, "--size is ''"),
        (
            ["replay", "FILE", "--size", "0%"],
            OptionError,
            "--size is '0%', expected an amount such as 8GiB or a share",
        ),
        (["replay", "FILE", "--size", "101%"], OptionError, "--size is '101%'"),
        (["replay", "FILE", "--size", "nan%"], OptionError, "--size is 'nan%'"),
        (
            ["replay", "FILE", "--size", "1kB"],
            OptionError,
            "--size is '1kB', which cannot hold one expert of 1.00 MiB",
        ),
        (["replay", "/nowhere"], TraceError, "/nowhere: cannot be read: No such file"),
        (
            ["plot", "FILE", "-o", "/nowhere/x.svg", "--size", "8M"],
            OptionError,
            "/nowhere/x.svg: cannot be written",
        ),
    ],
)
def test_mistakes(recorded: Path, arguments: list[str], kind: type[PenstockError], message: str) -> None:
    with pytest.raises(kind, match=message):
        trace(*(recorded if argument == "FILE" else argument for argument in arguments))


def test_an_empty_trace(tmp_path: Path) -> None:
    path = tmp_path / "t"
    TraceWriter(path, TraceHeader("f1", {"blk.0": EXPERT}, 16)).close()
    with pytest.raises(TraceError, match="no requests were recorded"):
        trace("replay", path)


def test_nothing_is_recorded_for_nothing(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="--prompt is empty"):
        trace("record", "-o", tmp_path / "t", "--prompt", " ")
    assert not list(tmp_path.iterdir())
