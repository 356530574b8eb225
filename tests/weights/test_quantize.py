"""Few bits: from GGUF files as from folders, with importance and without, in little memory."""

import subprocess
import sys
from pathlib import Path

import gguf
import numpy as np
import pytest

from penstock.errors import ModelFormatError
from penstock.pocket import pocket_path
from penstock.weights.convert import convert
from penstock.weights.imatrix import Entry, Imatrix, write_imatrix
from penstock.weights.mixes import mix_by_name
from penstock.weights.opening import open_checkpoint
from penstock.weights.synth import synth
from tests.oracles import hf, llamacpp
from tests.weights.converting import Published, types_in
from tests.weights.official import decoded


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Hugging Face folder whose experts have rows of 256."""
    folder = tmp_path_factory.mktemp("wide") / "hf"
    config = hf.tiny_config(hidden_size=256, moe_intermediate_size=256)
    hf.save(hf.random_model(config, 0), folder)
    return folder


def test_a_gguf_file_gives_what_its_folder_gives(wide: Path, tmp_path: Path) -> None:
    convert(wide, tmp_path / "f32.gguf", "f32")
    convert(wide, tmp_path / "direct.gguf", "q2")
    report = convert(tmp_path / "f32.gguf", tmp_path / "twice.gguf", "q2")
    direct, twice = (gguf.GGUFReader(tmp_path / f"{name}.gguf") for name in ("direct", "twice"))
    for a, b in zip(direct.tensors, twice.tensors, strict=True):
        assert (a.name, a.tensor_type) == (b.name, b.tensor_type)
        assert np.array_equal(a.data, b.data), a.name
    fields = {name: field.contents() for name, field in direct.fields.items() if not name.startswith("GGUF.")}
    assert fields == {n: f.contents() for n, f in twice.fields.items() if not n.startswith("GGUF.")}
    assert fields["general.file_type"] == gguf.LlamaFileType.MOSTLY_IQ2_XXS
    assert not report.main.twice


def test_the_draft_block_of_a_gguf_file_stays(tmp_path: Path) -> None:
    path = tmp_path / "pocket.gguf"
    report = convert(pocket_path(), path, "q4,embedding=q8_0")
    source, found = open_checkpoint(pocket_path()), open_checkpoint(path)
    assert found.has_mtp
    assert found.config == source.config
    assert found.metadata["tokenizer.ggml.tokens"] == source.metadata["tokenizer.ggml.tokens"]
    kinds = types_in(path)
    assert kinds["blk.8.ffn_gate_exps.weight"] == "Q4_K"
    assert kinds["blk.8.ffn_down_exps.weight"] == "Q5_0"  # rows of 128
    assert report.main.fallbacks["blk.8.ffn_down_exps.weight"] == ("Q4_K", "Q5_0")
    llamacpp.loads(path, mtp=True)


def test_what_was_rounded_before_is_said(wide: Path, tmp_path: Path) -> None:
    convert(wide, tmp_path / "q4.gguf", "q4")
    report = convert(tmp_path / "q4.gguf", tmp_path / "q3.gguf", "q3")
    assert len(report.main.twice) == 18
    assert any("rounded to few bits before" in note for note in report.notes)


def test_mixes_can_be_changed(wide: Path, tmp_path: Path) -> None:
    mix = "q4,down=q6_k,other=q8_0,blk.[01].ffn_up_exps.weight=q3_k"
    convert(wide, tmp_path / "m.gguf", mix)
    kinds = types_in(tmp_path / "m.gguf")
    assert kinds["blk.3.ffn_gate_exps.weight"] == "Q8_0"  # other: all that is not named
    assert kinds["blk.3.ffn_down_exps.weight"] == "Q6_K"
    assert [kinds[f"blk.{n}.ffn_up_exps.weight"] for n in range(3)] == ["Q3_K", "Q3_K", "Q8_0"]
    assert kinds["token_embd.weight"] == "Q8_0"
    assert kinds["blk.0.attn_norm.weight"] == "F32"
    assert mix_by_name("experts=q3_k,other=q8_0").types["ffn_up_exps"].name == "Q3_K"


def test_the_last_layers_of_q2_q4(tmp_path: Path) -> None:
    config = hf.tiny_config(
        hidden_size=256,
        moe_intermediate_size=256,
        compress_ratios=(0, 4, 128, 4, 0, 0, 0, 0),
        num_hash_layers=0,
    )
    hf.save(hf.random_model(config, 0), tmp_path / "hf")
    convert(tmp_path / "hf", tmp_path / "m.gguf", "q2-q4")
    kinds = types_in(tmp_path / "m.gguf")
    found = [kinds[f"blk.{n}.ffn_gate_exps.weight"] for n in range(8)]
    assert found == ["IQ2_XXS"] * 2 + ["Q4_K"] * 6


# ── importance ────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def matrix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(1)
    entries = {}
    for block in range(6):
        for part in ("gate", "up", "down"):
            sums = np.exp(2 * rng.standard_normal((8, 256))).astype(np.float32)
            entries[f"blk.{block}.ffn_{part}_exps.weight"] = Entry(sums, np.full(8, 3, np.float32))
    path = tmp_path_factory.mktemp("imatrix") / "m.imatrix.gguf"
    write_imatrix(Imatrix(entries, ("text.txt",), 7, 512), path)
    return path


@pytest.mark.parametrize("mix", ["q2", "q3"])
def test_every_expert_is_rounded_for_its_own_inputs(
    wide: Path, matrix: Path, tmp_path: Path, mix: str
) -> None:
    convert(wide, tmp_path / "f32.gguf", "f32")
    convert(wide, tmp_path / "blind.gguf", mix)
    report = convert(wide, tmp_path / "knowing.gguf", mix, imatrix=matrix)
    assert not report.main.unweighed
    original, blind, knowing = (decoded(tmp_path / f"{n}.gguf") for n in ("f32", "blind", "knowing"))
    for name, entry in ((f"blk.4.ffn_{part}_exps.weight",) * 2 for part in ("gate", "up", "down")):
        weights = gguf_sums(matrix, entry)[:, None, :]  # [experts, 1, columns]
        errors = [
            (weights * (found[name].astype(np.float64) - original[name]) ** 2).sum(axis=(1, 2))
            for found in (blind, knowing)
        ]
        assert (errors[1] < errors[0]).all(), name
    fields = gguf.GGUFReader(tmp_path / "knowing.gguf").fields
    assert fields["quantize.imatrix.file"].contents() == str(matrix)
    assert fields["quantize.imatrix.dataset"].contents() == "text.txt"
    assert fields["quantize.imatrix.entries_count"].contents() == 18
    assert fields["quantize.imatrix.chunks_count"].contents() == 7
    llamacpp.loads(tmp_path / "knowing.gguf")


def gguf_sums(path: Path, name: str) -> np.ndarray:
    (found,) = (t for t in gguf.GGUFReader(path).tensors if t.name == f"{name}.in_sum2")
    return np.asarray(found.data, np.float64)


def test_two_bits_without_importance_are_warned_of(wide: Path, matrix: Path, tmp_path: Path) -> None:
    report = convert(wide, tmp_path / "m.gguf", "q2")
    assert len(report.main.blind) == 12
    assert any("12 tensors are in IQ2_XXS without an importance matrix" in note for note in report.notes)
    report = convert(wide, tmp_path / "n.gguf", "q2,attention=q4_k", imatrix=matrix)
    assert any("knows nothing of" in note for note in report.notes)


def test_a_matrix_of_another_model_is_refused(published: Published, matrix: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelFormatError, match=r"m\.imatrix\.gguf: blk\.\d\.ffn_.*expected"):
        convert(published.folder, tmp_path / "m.gguf", "q4,experts=q4_0", imatrix=matrix)
    assert not list(tmp_path.iterdir())


# ── memory ────────────────────────────────────────────────────────────────────────────────────────────────

LIMITED = """
import resource, sys
from pathlib import Path
from penstock.native.library import native
from penstock.weights.convert import convert
native()
data = int(next(line for line in open("/proc/self/status") if line.startswith("VmData")).split()[1]) << 10
resource.setrlimit(resource.RLIMIT_DATA, (data + (112 << 20),) * 2)
print(convert(Path(sys.argv[1]), Path(sys.argv[2]), "q4,embedding=q6_k", threads=1).main.tensors)
"""


def test_memory_does_not_grow_with_the_model(tmp_path: Path) -> None:
    """An embedding of 160 MiB in float32 goes through; the limit is on what the process has to itself."""
    synth(tmp_path / "m.gguf", layers=3, vocab=163_840, mix="q2")
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, tmp_path / "m.gguf", tmp_path / "q4.gguf"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert open_checkpoint(tmp_path / "q4.gguf").index["token_embd.weight"].nbytes == 163_840 * 210
