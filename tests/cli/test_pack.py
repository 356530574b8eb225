"""`penstock pack`: it measures first, and writes only what is worth its space or was insisted on."""

import json
from functools import partial
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from penstock.cli import pack
from penstock.cli.main import app
from penstock.cli.opening import open_engine
from penstock.engine.options import EngineOptions
from penstock.errors import ModelFormatError, OptionError
from penstock.storage.pack_speed import Speeds, measure
from penstock.storage.source import ExpertSource
from penstock.weights.synth import synth
from tests.storage.packs import write_in_one_piece


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "m.gguf"
    synth(path, width="tiny", ratios=(0, 4), hash_layers=1)
    return path


@pytest.fixture
def packed(model: Path) -> Path:
    return model.with_name("m.gguf.pack")


def disk(monkeypatch: pytest.MonkeyPatch, gain: float) -> None:
    """A disk that gains so much from reading experts in one piece."""

    def found(_: ExpertSource) -> Speeds:
        return Speeds(2e9, 2e9 * (1 + gain), gain)

    monkeypatch.setattr(pack, "measure", found)


def packing(model: Path, *arguments: str) -> Result:
    return CliRunner().invoke(app, ["pack", "-m", str(model), *arguments])


def test_a_pack_that_gains_little_is_not_written(
    model: Path, packed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk(monkeypatch, 0.02)
    result = packing(model)
    assert result.exit_code == 0, result.output
    assert "2.00 GB/s in 3 reads each, at 2.04 GB/s in one; round by round that is +2.0%" in result.stdout
    assert "would gain less than 3%; none was written (--force writes it all the same)" in result.stdout
    assert not packed.exists()


def test_a_pack_that_gains_much_is_written_and_used(
    model: Path, packed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk(monkeypatch, 0.03)
    result = packing(model)
    assert result.exit_code == 0, result.output
    assert f"{packed}: 1.75 MiB written" in result.stdout
    for choice, expected in (("auto", packed), (None, model), (str(packed), packed)):
        with open_engine(model, EngineOptions(streaming="resident", draft="off", pack=choice)) as engine:
            assert engine.stats()["experts_from"] == str(expected)


def test_force_writes_and_replaces(
    model: Path, packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk(monkeypatch, 0.0)
    packed.write_bytes(b"old")
    assert packing(model, "--force").exit_code == 0
    elsewhere = tmp_path / "elsewhere"
    assert packing(model, "--force", "-o", str(elsewhere)).exit_code == 0
    assert elsewhere.read_bytes() == packed.read_bytes() != b"old"


def test_a_pack_that_exists_is_an_error_before_anything_is_measured(
    model: Path, packed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pack, "measure", None)
    packed.write_bytes(b"old")
    error = packing(model).exception
    assert isinstance(error, OptionError)
    assert f"{packed}: exists already; --force" in str(error)
    assert packed.read_bytes() == b"old"


@pytest.mark.parametrize(
    ("gain", "message"), [(0.2, "the same command without --measure writes it"), (0.0, "less than 3%\n")]
)
def test_measuring_only(
    model: Path, packed: Path, monkeypatch: pytest.MonkeyPatch, gain: float, message: str
) -> None:
    disk(monkeypatch, gain)
    result = packing(model, "--measure")
    assert result.exit_code == 0, result.output
    assert message in result.stdout
    assert not packed.exists()


def test_json_of_a_disk_that_is_really_read(
    model: Path, packed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pack, "measure", partial(measure, seconds=0.0, rounds=3))
    found = json.loads(packing(model, "--measure", "--json").stdout)
    assert found["reads_per_expert"] == 3
    assert found["bytes_per_second"] > 0
    assert found["worth_it"] == (found["gain"] >= 0.03)
    assert found["written"] is None
    found = json.loads(packing(model, "--force", "--json").stdout)
    assert found["written"] == str(packed)
    assert found["pack_bytes"] == packed.stat().st_size


def test_experts_that_lie_in_one_piece_already(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pack, "measure", None)  # there is nothing to compare
    folder = write_in_one_piece(tmp_path / "tiny")
    result = packing(folder)
    assert result.exit_code == 0, result.output
    assert "every expert lies in one piece already\n" in result.stdout
    found = json.loads(packing(folder, "--json").stdout)
    assert (found["gain"], found["worth_it"], found["bytes_per_second"]) == (0.0, False, None)
    assert [path.name for path in tmp_path.iterdir()] == ["tiny"]


def test_a_pack_that_does_not_fit_is_one_line(
    model: Path, packed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    packed.write_bytes(b"something else")
    with open_engine(model, EngineOptions()) as engine:
        assert engine.stats()["experts_from"] == str(model)
    expected = f"penstock: {packed}: not a pack of experts.  Experts are read from the model itself.\n"
    assert capsys.readouterr().err == expected
    with pytest.raises(ModelFormatError, match="not a pack"):
        open_engine(model, EngineOptions(pack=str(packed)))
