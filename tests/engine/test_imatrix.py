"""An importance matrix holds the squares of what really went into every weight."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import typer
from typer.testing import CliRunner

import penstock
from penstock.cli.commands.imatrix import imatrix_command
from penstock.engine.imatrix import InputCollector
from penstock.errors import OptionError
from penstock.weights.convert import convert
from penstock.weights.imatrix import Imatrix, read_imatrix
from penstock.weights.synth import synth
from tests.tiny import TinyModel


def collected(path: Path, ids: list[int], chunk: int, **options: Any) -> Imatrix:
    with penstock.Engine(path, load=False, kv_dtype="f32", draft="off", **options) as engine:
        collector = InputCollector(engine)
        for _ in collector.read(ids, chunk):
            pass
        return collector.imatrix(["ids"])


def test_sums_are_those_of_transformers(tiny: TinyModel) -> None:
    """Two chunks of a text, the first token of each being BOS: every dense weight's inputs, by hooks."""
    seen: dict[str, list[torch.Tensor]] = {}

    def hook(name: str) -> Callable[..., None]:
        def note(_: Any, inputs: tuple[torch.Tensor, ...]) -> None:
            seen.setdefault(name, []).append(inputs[0].detach().reshape(-1, inputs[0].shape[-1]).double())

        return note

    handles = []
    names = {
        "self_attn.q_a_proj": "attn_q_a",
        "self_attn.q_b_proj": "attn_q_b",
        "self_attn.kv_proj": "attn_kv",
        "self_attn.o_b_proj": "attn_output_b",
        "mlp.shared_experts.gate_proj": "ffn_gate_shexp",
        "mlp.shared_experts.up_proj": "ffn_up_shexp",
        "mlp.shared_experts.down_proj": "ffn_down_shexp",
    }
    for number, layer in enumerate(tiny.model.model.layers):
        for theirs, ours in names.items():
            module = layer.get_submodule(theirs)
            handles.append(module.register_forward_pre_hook(hook(f"blk.{number}.{ours}.weight")))
    bos = penstock.Engine(tiny.folder, load=False).config.bos_id
    first = [] if bos is None else [bos]
    body = 60 - len(first)
    with torch.no_grad():
        for at in (0, body):
            tiny.model(torch.tensor([[*first, *tiny.ids[at : at + body]]]), use_cache=False)
    for handle in handles:
        handle.remove()
    found = collected(tiny.folder, tiny.ids[: 2 * body], 60)
    assert seen
    for name, inputs in seen.items():
        expected = (torch.cat(inputs) ** 2).sum(dim=0).numpy()
        assert found.entries[name].counts.tolist() == [120], name
        # Where a score is nearly a tie another expert is chosen and later layers see other inputs.
        assert np.median(np.abs(found.entries[name].sums[0] / expected - 1)) < 1e-4, name
    routed = found.entries["blk.0.ffn_gate_exps.weight"]
    assert routed.counts.sum() == 120 * 2
    assert np.allclose(
        routed.sums.sum(axis=0), 2 * found.entries["blk.0.ffn_gate_shexp.weight"].sums[0], rtol=1e-4
    )
    assert found.entries["blk.0.attn_output_a.weight"].sums.shape[0] == 2  # a part for each group
    assert found.entries["output.weight"].counts[0] == 2 * 32


def test_where_experts_lie_changes_nothing(tmp_path: Path) -> None:
    synth(tmp_path / "m.gguf", layers=3, mix="q4")
    ids = np.random.default_rng(0).integers(0, 250, 200).tolist()
    mapped = collected(tmp_path / "m.gguf", ids, 50, threads=1, streaming="mmap")
    direct = collected(tmp_path / "m.gguf", ids, 50, threads=2, streaming="direct", prefill_chunk=50)
    assert mapped.entries.keys() == direct.entries.keys()
    for name, entry in mapped.entries.items():
        assert np.array_equal(entry.sums, direct.entries[name].sums), name
        assert np.array_equal(entry.counts, direct.entries[name].counts), name


def test_nothing_is_observed_unasked(tiny: TinyModel) -> None:
    engine = penstock.Engine(tiny.folder)
    with pytest.raises(OptionError, match="load=False"):
        InputCollector(engine)


def test_from_the_command_to_the_quantised_file(tmp_path: Path) -> None:
    """The pocket model, on its own README."""
    app = typer.Typer()
    app.command()(imatrix_command)
    text, matrix = tmp_path / "text.txt", tmp_path / "pocket.imatrix.gguf"
    text.write_text("What is a penstock? A pipe that carries water to the turbine. " * 40)
    arguments = [str(text), "-o", str(matrix), "--chunk-size", "128", "--memory", "none"]
    done = CliRunner().invoke(app, [*arguments, "--chunks", "2", "--json"])
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert (report["chunks"], report["tokens"]) == (2, 256)
    assert 1 < report["perplexity"] < 1e6
    found = read_imatrix(matrix)
    assert found.datasets == (str(text),)
    assert found.chunk_size == 128
    from penstock.pocket import pocket_path

    converted = convert(pocket_path(), tmp_path / "q2.gguf", "q2", imatrix=matrix)
    # The draft block takes no part in reading a text.
    assert all(name.startswith("blk.8.") for name in converted.main.unweighed)
    assert CliRunner().invoke(app, arguments).exception is not None  # exists already


@pytest.mark.parametrize(
    ("text", "message"), [(b"short", "expected at least 511 for one chunk"), (b"\xff\xfe", "not UTF-8")]
)
def test_bad_texts_are_named(tmp_path: Path, text: bytes, message: str) -> None:
    app = typer.Typer()
    app.command()(imatrix_command)
    (tmp_path / "t.txt").write_bytes(text)
    done = CliRunner().invoke(app, [str(tmp_path / "t.txt"), "-o", str(tmp_path / "m"), "--memory", "none"])
    assert isinstance(done.exception, OptionError)
    assert message in str(done.exception)
    assert not (tmp_path / "m").exists()
