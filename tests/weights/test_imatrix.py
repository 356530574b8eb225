"""Importance matrices: both of llama.cpp's formats, and what is made of them."""

import struct
from pathlib import Path

import gguf
import numpy as np
import pytest

from penstock.errors import ModelFormatError
from penstock.weights.imatrix import LEAST, Entry, Imatrix, read_imatrix, write_imatrix


def made() -> Imatrix:
    rng = np.random.default_rng(0)
    entries = {
        "blk.0.attn_q_a.weight": Entry(rng.random((1, 64), np.float32), np.array([10], np.float32)),
        "blk.0.ffn_gate_exps.weight": Entry(
            rng.random((4, 64), np.float32), np.array([5, 0, 7, 9], np.float32)
        ),
    }
    entries["blk.0.ffn_gate_exps.weight"].sums[1] = 0
    return Imatrix(entries, ("one.txt", "two.txt"), chunks=3, chunk_size=512)


def as_dat(imatrix: Imatrix) -> bytes:
    """As llama-imatrix wrote it before GGUF: means times a number of calls, ones for experts it never saw."""
    out = struct.pack("<i", len(imatrix.entries))
    for name, entry in imatrix.entries.items():
        calls = 4
        means = np.where(
            entry.counts[:, None] > 0, entry.sums / np.maximum(entry.counts, 1)[:, None], 1
        ).astype("<f4")
        out += struct.pack("<i", len(name)) + name.encode()
        out += struct.pack("<ii", calls, means.size) + (means * calls).astype("<f4").tobytes()
    dataset = imatrix.datasets[0].encode()
    return out + struct.pack("<ii", imatrix.chunks, len(dataset)) + dataset


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    write_imatrix(made(), path)
    found = read_imatrix(path)
    assert (found.datasets, found.chunks, found.chunk_size) == (("one.txt", "two.txt"), 3, 512)
    for name, entry in made().entries.items():
        assert np.array_equal(found.entries[name].sums, entry.sums)
        assert np.array_equal(found.entries[name].counts, entry.counts)


def test_names_and_shapes_are_those_of_llamacpp(tmp_path: Path) -> None:
    write_imatrix(made(), tmp_path / "m.gguf")
    reader = gguf.GGUFReader(tmp_path / "m.gguf")
    assert reader.fields["general.type"].contents() == "imatrix"
    assert reader.fields["imatrix.datasets"].contents() == ["one.txt", "two.txt"]
    assert reader.fields["imatrix.chunk_count"].types == [gguf.GGUFValueType.UINT32]
    shapes = {tensor.name: tensor.shape.tolist() for tensor in reader.tensors}
    assert shapes["blk.0.ffn_gate_exps.weight.in_sum2"] == [64, 4]
    assert shapes["blk.0.ffn_gate_exps.weight.counts"] == [1, 4]
    assert shapes["blk.0.attn_q_a.weight.counts"] == [1, 1]


def test_the_older_format(tmp_path: Path) -> None:
    path, name = tmp_path / "m.dat", "blk.0.ffn_gate_exps.weight"
    path.write_bytes(as_dat(made()))
    found = read_imatrix(path)
    assert (found.datasets, found.chunks) == (("one.txt",), 3)
    old, new = found.importance(name, 64), made().importance(name, 64)
    assert old is not None
    assert new is not None
    seen = [0, 2, 3]
    assert np.allclose(old[seen], new[seen], rtol=1e-5)
    assert np.allclose(old[1], 1)
    path.write_bytes(as_dat(made())[:-15])  # without what newer files have at the end
    assert read_imatrix(path).entries.keys() == found.entries.keys()


def test_importance_is_one_on_average_and_never_nothing() -> None:
    imatrix = made()
    imatrix.entries["blk.0.attn_q_a.weight"].sums[0, :8] = 0
    found = imatrix.importance("blk.0.attn_q_a.weight", 64)
    assert found is not None
    assert found.shape == (1, 64)
    assert found.mean() == pytest.approx(1, rel=1e-3)
    assert (found[0, :8] == np.float32(LEAST)).all()
    assert imatrix.importance("blk.0.attn_q_b.weight", 64) is None


def test_an_expert_that_was_never_needed_gets_what_the_others_have() -> None:
    found = made().importance("blk.0.ffn_gate_exps.weight", 64)
    assert found is not None
    entry = made().entries["blk.0.ffn_gate_exps.weight"]
    others = (entry.sums / np.maximum(entry.counts, 1)[:, None])[[0, 2, 3]].mean(axis=0)
    assert np.allclose(found[1], others / others.mean(), rtol=1e-5)


def test_what_does_not_fit_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        ModelFormatError, match=r"attn_q_a\.weight: 64 values, expected a multiple of .* 48 col"
    ):
        made().importance("blk.0.attn_q_a.weight", 48)
    broken = made()
    broken.entries["blk.0.attn_q_a.weight"].sums[0, 3] = np.nan
    write_imatrix(broken, tmp_path / "nan.gguf")
    with pytest.raises(ModelFormatError, match=r"blk\.0\.attn_q_a\.weight: holds a number that is no sum"):
        read_imatrix(tmp_path / "nan.gguf")
    (tmp_path / "x.dat").write_bytes(b"something else entirely")
    with pytest.raises(ModelFormatError, match=r"x\.dat: not an importance matrix"):
        read_imatrix(tmp_path / "x.dat")
    with pytest.raises(ModelFormatError, match="cannot be read"):
        read_imatrix(tmp_path / "nothing")
