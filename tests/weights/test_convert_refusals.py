"""What conversion refuses, and that nothing half-written remains; and the command."""

import json
import shutil
from pathlib import Path

import pytest
import torch
import typer
from safetensors.torch import load_file, save_file
from torch import Tensor
from typer.testing import CliRunner

from penstock.cli.commands.quantize import quantize_command
from penstock.errors import ModelFormatError, OptionError
from penstock.weights.convert import convert
from penstock.weights.opening import open_checkpoint
from tests.weights.converting import (
    Made,
    Published,
    copied,
    types_in,
)
from tests.weights.official import (
    decoded,
)

# ── refusals ──────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """An empty folder, to see that it stays so."""
    folder = tmp_path / "out"
    folder.mkdir()
    return folder


def test_full_disk(published: Published, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(out)._replace(free=1_000_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with pytest.raises(OptionError, match=r"model\.gguf: [\d,]+ bytes are needed, 1,000,000 are free in "):
        convert(published.folder, out / "model.gguf", "f32")
    assert not list(out.iterdir())


def test_both_files_must_fit_together(
    published: Published, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = convert(published.folder, out / "model.gguf", "f32")
    (out / "model.gguf").unlink()
    enough_for_one = sum(report.main.bytes_by_type.values()) + (17 << 20)
    usage = shutil.disk_usage(out)._replace(free=enough_for_one)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    convert(published.folder, out / "model.gguf", "f32")
    (out / "model.gguf").unlink()
    with pytest.raises(OptionError, match="are free"):
        convert(published.folder, out / "model.gguf", "f32", mtp=out / "mtp.gguf")
    assert not list(out.iterdir())


def test_existing_file_needs_overwrite(published: Published, out: Path) -> None:
    path = out / "model.gguf"
    path.write_text("precious")
    with pytest.raises(OptionError, match="exists already"):
        convert(published.folder, path, "mxfp4")
    assert path.read_text() == "precious"
    convert(published.folder, path, "mxfp4", overwrite=True)
    open_checkpoint(path)


def test_bad_places_are_refused(published: Published, out: Path) -> None:
    shard = next(published.folder.glob("*.safetensors"))
    before = shard.read_bytes()
    for destination, message in [
        (out / "nowhere" / "model.gguf", "there is no folder"),
        (out, "found a folder"),
        (shard, "belongs to the model"),
    ]:
        with pytest.raises(OptionError, match=message):
            convert(published.folder, destination, "mxfp4", overwrite=True)
    with pytest.raises(OptionError, match="two different files"):
        convert(published.folder, out / "a.gguf", "mxfp4", mtp=out / "b" / ".." / "a.gguf")
    assert shard.read_bytes() == before
    assert not list(out.iterdir())


def test_bad_mixes_and_sources_are_refused(published: Published, out: Path, tmp_path: Path) -> None:
    for mix, message in [
        ("q7", "expected one of q2, q2-q4, q2_k, q3, q4, q5, q6, mxfp4"),
        ("q4,down=q7", "'down=q7', expected WHAT=TYPE with a type of bf16, f16"),
        ("q4,down", "'down', expected WHAT=TYPE"),
        ("q4,downs=q6_k", "'downs' is neither experts, gate, up, down"),
    ]:
        with pytest.raises(OptionError, match=message):
            convert(published.folder, out / "model.gguf", mix)
    with pytest.raises(ModelFormatError, match="no such file or folder"):
        convert(tmp_path / "nothing", out / "model.gguf", "q8_0")
    assert not list(out.iterdir())


def test_no_draft_block_to_convert(tiny: Made, out: Path) -> None:
    with pytest.raises(ModelFormatError, match="found none"):
        convert(tiny.folder, out / "model.gguf", "f32", mtp=out / "mtp.gguf")
    assert not list(out.iterdir())


def test_missing_tensor(published: Published, tmp_path: Path, out: Path) -> None:
    folder = copied(published, tmp_path / "x", lambda all: all.pop("layers.3.ffn.experts.5.w2.weight"))
    with pytest.raises(ModelFormatError, match=r"blk\.3\.ffn_down_exps\.5\.weight is missing"):
        convert(folder, out / "model.gguf", "mxfp4")
    assert not list(out.iterdir())


def changed(tiny: Made, folder: Path, name: str, value: float) -> Path:
    """The Hugging Face folder with one number changed."""
    shutil.copytree(tiny.folder, folder)
    (file,) = folder.glob("*.safetensors")
    tensors = load_file(file)
    tensors[name].view(-1)[-1] = value
    save_file(tensors, file)
    return folder


@pytest.mark.parametrize(
    ("mix", "value", "message"),
    [
        ("f16", -70000.0, r"holds -70000, but F16 ends at 65504"),
        ("f16", float("nan"), r"holds nan"),
        ("bf16", 3.4e38, r"BF16 ends at 3\.38953e\+38"),
        ("q8_0", 1e7, r"Q8_0 ends at"),
        ("mxfp4", float("inf"), r"holds inf"),
    ],
)
def test_numbers_a_type_cannot_hold(
    tiny: Made, tmp_path: Path, out: Path, mix: str, value: float, message: str
) -> None:
    name = next(
        n for n in load_file(next(tiny.folder.glob("*.safetensors"))) if "layers.2." in n and "q_b" in n
    )
    folder = changed(tiny, tmp_path / "x", name, value)
    with pytest.raises(ModelFormatError, match=rf"tensor blk\.2\.attn_q_b\.weight: .*{message}"):
        convert(folder, out / "model.gguf", mix)
    assert not list(out.iterdir())


def test_numbers_at_the_edge_of_a_type(tiny: Made, tmp_path: Path) -> None:
    name = next(
        n for n in load_file(next(tiny.folder.glob("*.safetensors"))) if "layers.2." in n and "q_b" in n
    )
    folder = changed(tiny, tmp_path / "x", name, 65504.0)
    convert(folder, tmp_path / "model.gguf", "f16")
    assert decoded(tmp_path / "model.gguf")["blk.2.attn_q_b.weight"].max() == 65504


def test_damaged_scale_of_an_expert(published: Published, tmp_path: Path, out: Path) -> None:
    def damage(tensors: dict[str, Tensor]) -> None:
        name = "layers.1.ffn.experts.2.w3.scale"
        tensors[name] = tensors[name].clone()
        tensors[name].view(torch.uint8)[0, 0] = 255

    folder = copied(published, tmp_path / "x", damage)
    for mix in ("mxfp4", "q8_0"):
        with pytest.raises(ModelFormatError, match=r"blk\.1\.ffn_up_exps\.2\.weight"):
            convert(folder, out / "model.gguf", mix)
    assert not list(out.iterdir())


def test_expert_number_outside_the_model(published: Published, tmp_path: Path, out: Path) -> None:
    def damage(tensors: dict[str, Tensor]) -> None:
        tensors["layers.0.ffn.gate.tid2eid"] = tensors["layers.0.ffn.gate.tid2eid"].clone()
        tensors["layers.0.ffn.gate.tid2eid"][7, 0] = 8

    folder = copied(published, tmp_path / "x", damage)
    with pytest.raises(ModelFormatError, match=r"tid2eid\.weight: entry 8, expected expert numbers below 8"):
        convert(folder, out / "model.gguf", "mxfp4")
    assert not list(out.iterdir())


def test_progress_counts_every_byte(published: Published, out: Path) -> None:
    calls: list[tuple[int, int, str]] = []
    report = convert(
        published.folder,
        out / "model.gguf",
        "mxfp4",
        mtp=out / "mtp.gguf",
        progress=lambda *call: calls.append(call),
    )
    assert report.mtp is not None
    total = sum(report.main.bytes_by_type.values()) + sum(report.mtp.bytes_by_type.values())
    assert [call[0] for call in calls] == sorted(call[0] for call in calls)
    assert calls[-1][:2] == (total, total)
    assert {call[1] for call in calls} == {total}
    assert set(types_in(out / "model.gguf")) <= {call[2] for call in calls}


# ── the command ───────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def app() -> typer.Typer:
    app = typer.Typer()
    app.command()(quantize_command)
    return app


def test_command_prints_a_report(app: typer.Typer, published: Published, out: Path) -> None:
    arguments = [str(published.folder), str(out / "model.gguf"), "--mix", "mxfp4"]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    assert "MXFP4" in done.stdout
    assert "--mtp FILE" in done.stdout
    done = CliRunner().invoke(app, [*arguments, "--json", "--force", "--mtp", str(out / "mtp.gguf")])
    report = json.loads(done.stdout)
    assert report["mtp"]["path"] == str(out / "mtp.gguf")
    assert report["main"]["tensors"] == len(types_in(out / "model.gguf"))


def test_command_errors_are_ours(app: typer.Typer, published: Published, out: Path) -> None:
    arguments = [str(published.folder), str(out / "model.gguf"), "--mix"]
    done = CliRunner().invoke(app, [*arguments, "q7"])
    assert isinstance(done.exception, OptionError)
    assert "mxfp4" in str(done.exception)
    (out / "model.gguf").touch()
    assert isinstance(CliRunner().invoke(app, [*arguments, "mxfp4"]).exception, OptionError)
