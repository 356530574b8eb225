"""Writing packs: nothing is lost, and nothing half-written stays."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.errors import ModelFormatError, OptionError
from penstock.storage import pack_writer
from penstock.storage.pack import pack_path
from penstock.storage.pack_writer import experts_bytes, write_pack
from penstock.storage.source import ExpertSource
from penstock.weights.opening import open_checkpoint
from penstock.weights.types import F32, Q8_0, WeightType
from tests.storage.packs import make_model


def test_a_pack_that_exists_is_kept_unless_it_may_be_replaced(packed: Path, tmp_path: Path) -> None:
    checkpoint, pack = open_checkpoint(packed), tmp_path / "experts"
    pack.write_bytes(b"precious")
    with pytest.raises(OptionError, match="exists already; --force"):
        write_pack(checkpoint, pack)
    assert pack.read_bytes() == b"precious"
    done: list[int] = []
    size = write_pack(checkpoint, pack, overwrite=True, progress=done.append)
    assert pack.read_bytes() == pack_path(packed).read_bytes()
    assert sum(done) == experts_bytes(ExpertSource(checkpoint)) < size


def test_where_no_pack_can_be_written(packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = open_checkpoint(packed)
    with pytest.raises(OptionError, match="found a folder"):
        write_pack(checkpoint, tmp_path)
    with pytest.raises(OptionError, match="there is no folder"):
        write_pack(checkpoint, tmp_path / "nowhere" / "experts")
    with pytest.raises(OptionError, match="belongs to the model"):
        write_pack(checkpoint, packed, overwrite=True)
    free = shutil.disk_usage(tmp_path)._replace(free=1 << 20)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: free)
    with pytest.raises(OptionError, match="bytes are needed, 1,048,576 are free"):
        write_pack(checkpoint, tmp_path / "experts")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("failure", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_nothing_is_left_of_a_pack_that_failed(
    packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: BaseException
) -> None:
    def fail(*_: object) -> None:
        raise failure

    monkeypatch.setattr(pack_writer, "_write_expert", fail)
    expected = OptionError if isinstance(failure, OSError) else KeyboardInterrupt
    with pytest.raises(expected):
        write_pack(open_checkpoint(packed), tmp_path / "experts")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Q8_0, "expert 5 of blk.1: stored in other types than the first"),
        (F32, "expert 5 of blk.1: .* bytes, expected"),
    ],
)
def test_experts_of_one_block_in_several_types(tmp_path: Path, kind: WeightType, message: str) -> None:
    """A pack has no place for them, and large ones do not fit the slots that are planned for the block."""
    checkpoint = open_checkpoint(make_model("official", tmp_path))
    others = {}
    for part in ("gate", "up", "down"):
        info = checkpoint.index[f"blk.1.ffn_{part}_exps.5.weight"]
        others[info.name] = replace(info, kind=kind, nbytes=kind.nbytes(info.shape), scale=None)
    mixed = replace(checkpoint, index=checkpoint.index | others)
    with pytest.raises(ModelFormatError, match=message):
        write_pack(mixed, tmp_path / "experts")
    assert not (tmp_path / "experts").exists()
