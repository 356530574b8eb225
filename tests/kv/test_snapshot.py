"""Saved sessions: what is refused, and that nothing half-written remains."""

import errno
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock
from penstock.weights.synth import synth
from tests.tiny import TinyModel, make_tiny


@pytest.fixture(scope="module")
def saved(engine: penstock.Engine, tiny: TinyModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("snapshot") / "session"
    session = engine.session()
    session.feed(tiny.ids[:150])
    session.save(path)
    return path


def test_logits_come_back_with_the_session(engine: penstock.Engine, saved: Path, tiny: TinyModel) -> None:
    session = engine.session()
    expected = session.feed(tiny.ids[:150])
    assert expected is not None
    restored = engine.load_session(saved)
    assert restored.last_logits is not None
    assert np.array_equal(restored.last_logits, expected)
    assert restored.position == 150
    assert restored.max_rewind == 24


def test_an_empty_session_can_be_saved(engine: penstock.Engine, tmp_path: Path) -> None:
    engine.session().save(tmp_path / "s")
    assert engine.load_session(tmp_path / "s").position == 0


def test_other_models_and_settings_are_refused(saved: Path, tiny: TinyModel, tmp_path: Path) -> None:
    other = make_tiny(tmp_path, 10, start=777)
    with pytest.raises(penstock.SnapshotError, match="saved with another model"):
        penstock.Engine(other.folder).load_session(saved)
    with pytest.raises(penstock.SnapshotError, match="kv_dtype F16, this engine uses F32"):
        penstock.Engine(tiny.folder, kv_dtype="f32").load_session(saved)
    with pytest.raises(penstock.SnapshotError, match="saved with another model"):
        penstock.Engine(tiny.folder, simulate_low_precision=True).load_session(saved)
    with pytest.raises(penstock.SnapshotError, match="position is '150', expected a whole number up to 100"):
        penstock.Engine(tiny.folder, context=100).load_session(saved)


def test_a_larger_or_smaller_rewind_bound_is_fine(saved: Path, tiny: TinyModel) -> None:
    assert penstock.Engine(tiny.folder, max_rewind=200).load_session(saved).max_rewind == 24
    assert penstock.Engine(tiny.folder, max_rewind=5).load_session(saved).max_rewind == 5


@given(at=st.floats(0, 1), value=st.integers(1, 255))
def test_any_changed_byte_is_noticed(
    engine: penstock.Engine, saved: Path, tmp_path_factory: pytest.TempPathFactory, at: float, value: int
) -> None:
    data = bytearray(saved.read_bytes())
    data[min(int(at * len(data)), len(data) - 1)] ^= value
    path = tmp_path_factory.mktemp("damaged") / "s"
    path.write_bytes(data)
    with pytest.raises(penstock.SnapshotError):
        engine.load_session(path)


@given(keep=st.floats(0, 1))
def test_any_truncation_is_noticed(
    engine: penstock.Engine, saved: Path, tmp_path_factory: pytest.TempPathFactory, keep: float
) -> None:
    data = saved.read_bytes()
    path = tmp_path_factory.mktemp("short") / "s"
    path.write_bytes(data[: min(int(keep * len(data)), len(data) - 1)])
    with pytest.raises(penstock.SnapshotError):
        engine.load_session(path)


def test_missing_and_foreign_files(engine: penstock.Engine, tiny: TinyModel, tmp_path: Path) -> None:
    with pytest.raises(penstock.SnapshotError, match="cannot be read"):
        engine.load_session(tmp_path / "nothing")
    with pytest.raises(penstock.SnapshotError, match="not a saved session"):
        engine.load_session(next(tiny.folder.glob("*.safetensors")))


def test_a_full_disk_leaves_the_old_file(
    engine: penstock.Engine, saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = saved.read_bytes()

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(penstock.SnapshotError, match="No space left on device"):
        engine.session().save(saved)
    assert saved.read_bytes() == before
    assert os.listdir(saved.parent) == [saved.name]


def test_sessions_of_earlier_versions_load(tmp_path: Path) -> None:
    """Saved before states were slots of a pool: the very rows and logits that this version computes."""
    synth(tmp_path / "m.gguf", width="tiny", layers=3, ratios=(0, 4, 128), hash_layers=1, mix="q8_0", seed=7)
    engine = penstock.Engine(tmp_path / "m.gguf", context=64, max_rewind=2)
    session = engine.load_session(Path(__file__).parent / "data" / "session-1.safetensors")
    assert session.tokens == [7, 31, 5, 200, 11, 6, 90, 3, 17, 44]
    fed = engine.session()
    logits = fed.feed(session.tokens)
    assert logits is not None
    assert session.last_logits is not None
    assert np.array_equal(logits, session.last_logits)
    ours, theirs = session.state.tensors(), fed.state.tensors()
    assert ours.keys() == theirs.keys()
    assert all(ours[name].tobytes() == theirs[name].tobytes() for name in ours)
    session.rewind(2)
    expected, found = engine.session().feed([*session.tokens, 9, 8, 7]), session.feed([9, 8, 7])
    assert expected is not None
    assert found is not None
    assert np.array_equal(found, expected)
