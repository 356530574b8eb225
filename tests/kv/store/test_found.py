"""What the store gives back: the longest beginning, of this model alone."""

import threading
import warnings
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock
from penstock.backend.state import StateMemory
from penstock.kv.snapshot import Snapshot
from penstock.kv.store import KvStore
from penstock.kv.store_index import Entry, Index
from tests.kv.saved import MODEL, PLENTY, assert_equal, made_up
from tests.kv.store.entries import payloads, put, reopened
from tests.tiny import TinyModel


def test_the_answer_is_the_same_with_the_store(
    engine: penstock.Engine, tiny: TinyModel, tmp_path: Path
) -> None:
    never_stopped = engine.session()
    never_stopped.feed(tiny.ids[:200])
    expected = never_stopped.feed(tiny.ids[200:260], logits="all")
    assert expected is not None

    session = engine.session()
    last = session.feed(tiny.ids[:200])
    assert last is not None
    with KvStore(tmp_path, PLENTY, engine.fingerprint) as store:
        assert store.put(session.tokens, Snapshot(session.tokens, session.state, last), "prompt")

    restarted = penstock.Engine(tiny.folder, max_rewind=24)
    with KvStore(tmp_path, PLENTY, restarted.fingerprint) as store:
        entry = store.find(tiny.ids[:260])
        assert entry is not None
        assert (entry.length, entry.kind) == (200, "prompt")
        snapshot = store.load(entry, restarted.states)
    assert snapshot is not None
    assert snapshot.logits is not None
    assert np.array_equal(snapshot.logits, last)
    continued = penstock.Session(restarted, snapshot.state, snapshot.tokens)
    found = continued.feed(tiny.ids[200:260], logits="all")
    assert found is not None
    assert np.array_equal(found.view(np.uint32), expected.view(np.uint32))


PROMPTS = st.lists(st.integers(0, 1), min_size=1, max_size=7)


@given(saved=st.lists(PROMPTS, max_size=6), prompt=PROMPTS, at_least=st.integers(0, 5))
def test_the_longest_beginning_is_found(
    engine: penstock.Engine,
    tmp_path_factory: pytest.TempPathFactory,
    saved: list[list[int]],
    prompt: list[int],
    at_least: int,
) -> None:
    with KvStore(tmp_path_factory.mktemp("store"), PLENTY, MODEL) as store:
        for tokens in saved:
            put(store, engine.states, tokens)
        lengths = [len(tokens) for tokens in saved if tokens == prompt[: len(tokens)]]
        expected = max((length for length in lengths if length >= at_least), default=None)
        entry = store.find(prompt, at_least)
        assert (entry and entry.length) == expected
        if entry is not None:
            tokens = prompt[: entry.length]
            assert_equal(store.load(entry, engine.states), made_up(engine.states, tokens))


def test_models_share_a_folder_but_not_their_sessions(store: KvStore, states: StateMemory) -> None:
    put(store, states, [1, 2])
    with KvStore(store.folder, PLENTY, "another") as other:
        assert other.find([1, 2, 3]) is None
        put(other, states, [1])
        assert len(other) == 2
    found = store.find([1, 2, 3])
    assert found is not None
    assert found.length == 2


def test_what_is_there_is_not_written_again(store: KvStore, states: StateMemory) -> None:
    put(store, states, [1, 2], "system")
    (path,) = payloads(store)
    before = path.stat()
    assert store.put([1, 2], made_up(states, [1, 2]), "end")
    assert payloads(store) == [path]
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_a_look_up_is_a_few_rows_however_many_entries(tmp_path: Path) -> None:
    """Counted in SQLite's own steps: a scan of 5,000 entries would be tens of thousands."""
    with KvStore(tmp_path, PLENTY, MODEL) as store:
        index = store._index
        with index.transaction():
            for number in range(5000):
                index.set(Entry(f"{number:064x}", MODEL, 1000 + 10_000 * number, 1, "end", 0.0, 0.0))
        steps = 0

        def count() -> int:
            nonlocal steps
            steps += 1
            return 0

        index._db.set_progress_handler(count, 1)
        assert store.find([5] * 20_000) is None  # two of the lengths are in reach
        assert 0 < steps < 200
        index._db.set_progress_handler(None, 0)


def test_labels_are_found_again_without_the_index(store: KvStore, states: StateMemory) -> None:
    put(store, states, [1, 2, 3], "pinned-codex-1b")
    store.close()
    (store.folder / "index.sqlite").write_bytes(b"damaged")
    with pytest.warns(UserWarning, match="made again"), reopened(store) as other:
        assert [entry.label for entry in other.entries()] == ["codex-1b"]


def test_a_file_that_another_process_deleted_is_a_miss(store: KvStore, states: StateMemory) -> None:
    entry = put(store, states, [1, 2, 3])
    with reopened(store, space=entry.nbytes + 10) as other:
        assert other.put([4, 5, 6], made_up(states, [4, 5, 6]), "end")
    assert store.load(entry, states) is None
    assert store.find([1, 2, 3]) is None
    again = put(store, states, [1, 2, 3])
    assert store.load(entry, states) is not None  # as good as the new one
    (store.folder / f"{again.key}.prompt").unlink()
    assert store.load(entry, states) is None
    assert store._index.get(again.key) is not None  # an old entry says nothing about the new file


def test_threads_and_stores_side_by_side(store: KvStore, states: StateMemory) -> None:
    """Two stores on a folder too small for all, four threads each saving and loading the same sessions."""
    wanted = [[number] * (20 + number) for number in range(6)]
    expected = [made_up(states, tokens) for tokens in wanted]
    room = 3 * put(store, states, wanted[-1]).nbytes
    failures: list[BaseException] = []

    def work(mine: KvStore, seed: int) -> None:
        rng = np.random.default_rng(seed)
        try:
            for number in rng.integers(0, len(wanted), 25):
                assert mine.put(wanted[number], expected[number], "end")
                entry = mine.find(wanted[number])
                if entry is not None and (snapshot := mine.load(entry, states)) is not None:
                    assert_equal(snapshot, expected[number])
        except BaseException as error:
            failures.append(error)

    with warnings.catch_warnings(), reopened(store, room) as one, reopened(store, room) as two:
        warnings.simplefilter("error")
        threads = [threading.Thread(target=work, args=((one, two)[seed % 2], seed)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failures
        assert one.bytes <= room
        assert len(payloads(one)) == len(two)


def test_an_index_in_use_elsewhere_for_too_long(
    tmp_path: Path, states: StateMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Saving is given up, with a warning; finding and loading go on."""
    monkeypatch.setattr("penstock.kv.store_index.PATIENCE_S", 0.01)
    with KvStore(tmp_path, PLENTY, MODEL) as store:
        entry = put(store, states, [1])
        blocker = Index(tmp_path / "index.sqlite")
        with blocker.transaction():
            with pytest.warns(UserWarning, match="locked"):
                assert not store.put([2], made_up(states, [2]), "end")
            assert store.find([1]) == entry
            assert store.load(entry, states) is not None
        blocker.close()
        put(store, states, [2])


def test_bad_input_is_refused(store: KvStore, states: StateMemory, tmp_path: Path) -> None:
    with pytest.raises(
        penstock.OptionError, match="kind of a saved session is 'other', expected one of system"
    ):
        store.put([1], made_up(states, [1]), "other")
    with pytest.raises(penstock.OptionError, match="expected the same tokens"):
        store.put([1, 2], made_up(states, [1, 3]), "end")
    with pytest.raises(penstock.TokenError, match="must fit 32 bits"):
        store.find([1 << 40])
    with pytest.raises(penstock.OptionError, match="space for saved sessions is 0 bytes"):
        KvStore(tmp_path, 0, MODEL)
    (tmp_path / "file").write_text("")
    with pytest.raises(penstock.OptionError, match="file: cannot keep saved sessions: File exists"):
        KvStore(tmp_path / "file", PLENTY, MODEL)
    assert not store.put([], made_up(states, []), "end")
