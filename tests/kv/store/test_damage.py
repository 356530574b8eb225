"""Nothing damaged is ever used, and what can be is made again."""

import os
import sqlite3
import subprocess
import sys
import warnings
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock
from penstock.backend.cpu.states import CpuStates
from penstock.backend.state import StateMemory
from penstock.kv.store import KINDS, KvStore
from penstock.kv.store_index import Entry
from tests.kv.saved import MODEL, PLENTY, assert_equal, made_up
from tests.kv.store.entries import payloads, put, reopened


@given(at=st.floats(0, 1, exclude_max=True), value=st.integers(1, 255), cut=st.booleans())
def test_a_damaged_payload_is_never_used(
    engine: penstock.Engine,
    tmp_path_factory: pytest.TempPathFactory,
    at: float,
    value: int,
    cut: bool,
) -> None:
    states = engine.states
    with KvStore(tmp_path_factory.mktemp("store"), PLENTY, MODEL) as store:
        put(store, states, [1, 2])
        entry = put(store, states, [1, 2, 3])
        path = store.folder / f"{entry.key}.prompt"
        data = bytearray(path.read_bytes())
        place = int(at * len(data))
        data[place] ^= value
        path.write_bytes(data[:place] if cut else data)
        with pytest.warns(UserWarning, match="could not be loaded"):
            assert store.load(entry, states) is None
        assert not path.exists()
        shorter = store.find([1, 2, 3])
        assert shorter is not None
        assert shorter.length == 2
        put(store, states, [1, 2, 3])


def test_a_payload_of_other_tokens_is_never_used(store: KvStore, states: StateMemory) -> None:
    entry, other = put(store, states, [1, 2, 3]), put(store, states, [4, 5, 6])
    os.replace(store.folder / f"{other.key}.prompt", store.folder / f"{entry.key}.prompt")
    with pytest.warns(UserWarning, match="other tokens than its name says"):
        assert store.load(entry, states) is None
    assert store.find([1, 2, 3]) is None


def test_a_payload_of_another_layout_stays(store: KvStore, states: StateMemory) -> None:
    """Another engine may use it.  Here it is as if it were not there, and saving puts one that fits in its place."""
    layout = states.layout
    series = tuple(replace(each, dtype="f32") for each in layout.series)
    wide = CpuStates(replace(layout, series=series, kv_dtype="f32"))
    short = CpuStates(replace(layout, context=2))
    entry = put(store, states, [1, 2, 3])
    with reopened(store) as other:
        assert other.load(entry, short) is None
    with reopened(store) as other:
        assert other.load(entry, wide) is None
        assert other.find([1, 2, 3]) is None
        assert store.load(entry, states) is not None
        replaced = put(other, wide, [1, 2, 3], "end")
        assert_equal(other.load(replaced, wide), made_up(wide, [1, 2, 3]))
        assert len(payloads(other)) == 1


@pytest.mark.parametrize("damage", ["no database", "emptied", "truncated", "another version"])
def test_a_damaged_index_is_made_again(store: KvStore, states: StateMemory, damage: str) -> None:
    saved = {tuple(tokens): kind for tokens, kind in zip(([1], [1, 2], [3] * 40), KINDS, strict=False)}
    for tokens, kind in saved.items():
        put(store, states, list(tokens), kind)
    store.close()
    path = store.folder / "index.sqlite"
    if damage == "no database":
        path.write_bytes(b"something else " * 1000)
    elif damage == "emptied":
        path.write_bytes(b"")
    elif damage == "truncated":
        os.truncate(path, 5000)
    else:
        with sqlite3.connect(path) as db:
            db.execute("PRAGMA user_version = 99")
        db.close()
    with warnings.catch_warnings(record=True) as caught, reopened(store) as again:
        assert len(again) == 3
        for tokens, kind in saved.items():
            entry = again.find(list(tokens))
            assert entry is not None
            assert entry.kind == kind
            assert_equal(again.load(entry, states), made_up(states, list(tokens)))
    if damage != "emptied":
        assert "made again from the saved sessions" in str(caught[0].message)
        assert (store.folder / "index.sqlite.damaged").exists()


@given(flips=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(1, 255)), max_size=40))
@pytest.mark.filterwarnings("ignore:.*damaged")
def test_whatever_the_index_says_only_true_sessions_come_out(
    engine: penstock.Engine, tmp_path_factory: pytest.TempPathFactory, flips: list[tuple[float, int]]
) -> None:
    states = engine.states
    with KvStore(tmp_path_factory.mktemp("store"), PLENTY, MODEL) as store:
        prompts = [[number] * (number + 1) for number in range(3)]
        for tokens in prompts:
            put(store, states, tokens)
    path = store.folder / "index.sqlite"
    data = bytearray(path.read_bytes())
    for at, value in flips:
        data[int(at * len(data))] ^= value
    path.write_bytes(data)
    with reopened(store) as again:
        for tokens in prompts:
            if (entry := again.find(tokens)) is not None:
                assert_equal(again.load(entry, states), made_up(states, tokens))
            else:
                put(again, states, tokens)


def test_index_and_files_are_made_to_agree(store: KvStore, states: StateMemory) -> None:
    entries = [put(store, states, [number]) for number in range(3)]
    (store.folder / f"{entries[0].key}.prompt").unlink()  # a row without a file
    store._index.remove(entries[1].key)  # a file without a row
    rubbish = store.folder / f"{'0' * 64}.end"
    rubbish.write_bytes(b"not a session")
    stranger = store.folder / "README"
    stranger.write_text("not the store's")
    store._index.set(Entry("../notes", MODEL, 1, 1, "txt", 0.0, 0.0))  # no name of a payload
    (store.folder.parent / "notes.txt").write_text("not the store's")
    with reopened(store) as again:
        assert again.find([0]) is None
        assert again.find([1]) is not None
        assert again.find([2]) is not None
        assert not rubbish.exists()
        assert stranger.exists()
        assert len(again) == len(payloads(again)) == 2
    with reopened(store, space=1) as again:
        assert len(again) == len(payloads(again)) == 0
    assert (store.folder.parent / "notes.txt").exists()


def test_only_parts_without_a_writer_are_removed(store: KvStore) -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    mine, dead = os.getpid(), child.pid
    key = "0" * 64
    names = [f"{key}.0.{dead}.part", f"{key}.0.{dead}.part.{dead}.part"]
    alive = [f"{key}.1.{mine}.part", f"{key}.1.{mine}.part.{mine}.part", "notes.1.part"]
    ancient = f"{key}.2.{mine}.part"
    for name in (*names, *alive, ancient):
        (store.folder / name).write_bytes(b"some of it")
    os.utime(store.folder / ancient, (1e9, 1e9))
    reopened(store).close()
    assert sorted(path.name for path in store.folder.glob("*.part")) == sorted(alive)
