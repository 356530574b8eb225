"""A model planned from its headers is the model."""

from pathlib import Path

import pytest

from penstock.errors import HubError
from penstock.hub import outline
from penstock.hub.outline import outline_remote
from penstock.hub.pull import look_up
from penstock.hub.reference import parse_reference
from penstock.pocket import pocket_path
from penstock.weights.opening import open_checkpoint
from penstock.weights.summary import summarise
from tests.hub.server import Hub, Repo
from tests.weights.official import official_checkpoint, official_config
from tests.weights.rewrite import split


def outlined(name: str, folder: Path) -> Path:
    wanted = look_up(parse_reference(name))
    return outline_remote(wanted.listing, wanted.model, folder)


def same(one: Path, two: Path) -> bool:
    kept = (
        "bytes_by_type",
        "bytes_by_role",
        "streamable",
        "config",
        "layers",
        "draft",
        "tokenizer",
        "parameters",
    )
    ours, theirs = summarise(open_checkpoint(one)), summarise(open_checkpoint(two))
    return all(ours[key] == theirs[key] for key in kept)


def test_splits(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outline, "FIRST", 1 << 14)  # the header is longer: it comes in several goes
    monkeypatch.setattr(outline, "OTHERS", 1 << 12)
    parts = split(pocket_path(), tmp_path, 3)
    hub.repos["a/b"] = Repo({f"x/{part.name}": part.read_bytes() for part in parts})
    found = outlined("a/b", tmp_path / "outline")
    assert same(found, pocket_path())
    fetched = sum(asked.end - asked.first for asked in hub.fetched())
    assert fetched < 1 << 20
    assert sum(path.stat().st_blocks * 512 for path in found.parent.iterdir()) < 2 << 20


def test_a_folder(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outline, "OTHERS", 1 << 12)
    official_checkpoint(tmp_path / "official", official_config(), 0, mtp=True)
    files = {path.name: path.read_bytes() for path in (tmp_path / "official").iterdir()}
    hub.repos["a/b"] = Repo(files)
    assert same(outlined("a/b", tmp_path / "outline"), tmp_path / "official")


def test_what_has_no_header(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outline, "FIRST", 1 << 10)
    monkeypatch.setattr(outline, "MOST", 1 << 12)
    hub.repos["a/b"] = Repo({"m.gguf": b"no model at all" * 1000})
    with pytest.raises(HubError, match=r"a/b: m\.gguf: no header within 4,096 bytes"):
        outlined("a/b", tmp_path)
