"""`penstock bench` as a person uses it."""

import csv
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from penstock.bench.sweep import Trial, sweep
from penstock.cli import bench_report
from penstock.cli.main import app
from penstock.errors import OptionError
from tests.weights.rewrite import Metadata, Tensors, rewrite


def bench(*arguments: object) -> Any:
    """Runs the command in this process; gives its exit status if that is not 0."""
    return app(["bench", *map(str, arguments)], standalone_mode=False)


@pytest.fixture(autouse=True)
def _small_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_report, "read_bandwidth", lambda _: 10e9)


def test_table_csv_and_plot(model: Path, tmp_path: Path) -> None:
    table, picture = tmp_path / "t.csv", tmp_path / "p.svg"
    command = [sys.executable, "-m", "penstock", "bench", "-m", str(model), "--context", "16,40"]
    result = subprocess.run(
        [*command, "--decode", "2", "--threads", "1", "--csv", table, "--plot", picture],
        capture_output=True,
        text=True,
        env={**os.environ, "COLUMNS": "120", "NO_COLOR": "1"},
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""  # no progress where nobody watches
    for expected in ("experts", "decode 40", "GB/s", "of floor", "1 thread,"):
        assert expected in result.stdout
    assert len(list(csv.reader(table.open()))) == 3
    ElementTree.parse(picture)


def test_json_and_a_context_that_is_too_long(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def shorten(metadata: Metadata, _: Tensors) -> None:
        metadata["deepseek4.context_length"] = type(metadata["deepseek4.context_length"])(50)

    short = rewrite(model, tmp_path / "short.gguf", shorten)
    bench("-m", short, "--context", "8,2k,64k", "--decode", 4, "--json", "--threads", 1)
    report = json.loads(capsys.readouterr().out)
    assert [point["context"] for point in report["points"]] == [8, 46]
    assert "the context holds 50 tokens" in report["notes"][0]


@pytest.mark.parametrize("finished", [0, 2])
def test_ctrl_c_shows_what_was_measured(
    finished: int, model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*args: Any, **kwargs: Any) -> Iterator[Trial]:
        trials = sweep(*args, **kwargs)
        for _ in range(finished):
            yield next(trials)
        raise KeyboardInterrupt

    monkeypatch.setattr(bench_report, "sweep", interrupted)
    arguments = ["-m", model, "--context", "8,16,24", "--decode", 1, "--threads", 1]
    assert bench(*arguments) == 130
    assert ("interrupted: 2 of 3 measurements" in capsys.readouterr().out) == (finished > 0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--context", "lots"], "--context is 'lots', expected lengths such as 512,2k,8k"),
        (["--decode", "0"], "--decode is 0, expected a whole number from 1"),
        (["--decode", "16384"], "--decode is 16,384, the context holds 16,384 tokens"),
        (["--repeat", "0"], "--repeat is 0, expected a whole number from 1"),
        (["--threads", "0"], "threads is 0, expected a whole number from 1"),
        (["--kv-dtype", "f8"], "--kv-dtype is 'f8'"),
        (["--csv", "/nowhere/t.csv"], "/nowhere/t.csv: cannot be written: No such file"),
        (["--csv", "/"], "/: cannot be written: Is a directory"),
        (["--plot", "speed.png"], "--plot speed.png: pictures are SVG"),
    ],
)
def test_mistakes_are_said_at_once(arguments: list[str], message: str, model: Path) -> None:
    with pytest.raises(OptionError, match=message):
        bench("-m", model, *arguments)
