"""The store of saved sessions: what is found, what goes, and that nothing damaged is ever used."""

import errno
import os
import sqlite3
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock
from penstock.backend.cpu.states import CpuStates
from penstock.backend.state import StatePool
from penstock.kv.snapshot import Snapshot, save_snapshot
from penstock.kv.store import KINDS, KvStore
from penstock.kv.store_index import Entry, Index
from tests.kv.saved import MODEL, PLENTY, assert_equal, made_up
from tests.tiny import TinyModel


@pytest.fixture
def states(engine: penstock.Engine) -> StatePool:
    return engine.states


@pytest.fixture
def store(tmp_path: Path) -> Iterator[KvStore]:
    with KvStore(tmp_path / "store", PLENTY, MODEL) as store:
        yield store


def put(store: KvStore, states: StatePool, tokens: list[int], kind: str = "prompt") -> Entry:
    assert store.put(tokens, made_up(states, tokens), kind)
    entry = store.find(tokens)
    assert entry is not None
    return entry


def payloads(store: KvStore) -> list[Path]:
    return sorted(path for path in store.folder.iterdir() if path.suffix[1:] in KINDS)


def reopened(store: KvStore, space: int = PLENTY) -> KvStore:
    """Another process's look at the same folder."""
    return KvStore(store.folder, space, store.fingerprint)


# ── what a restart gives back ─────────────────────────────────────────────────────────────────────────────


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


def test_models_share_a_folder_but_not_their_sessions(store: KvStore, states: StatePool) -> None:
    put(store, states, [1, 2])
    with KvStore(store.folder, PLENTY, "another") as other:
        assert other.find([1, 2, 3]) is None
        put(other, states, [1])
        assert len(other) == 2
    found = store.find([1, 2, 3])
    assert found is not None
    assert found.length == 2


def test_what_is_there_is_not_written_again(store: KvStore, states: StatePool) -> None:
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


# ── what goes when the space is used up ───────────────────────────────────────────────────────────────────


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Sets the time, in hours."""

    def set_time(hours: float) -> None:
        monkeypatch.setattr("time.time", lambda: 1e9 + 3600 * hours)

    set_time(0)
    return set_time


def test_the_least_recently_used_go_first(
    store: KvStore, states: StatePool, clock: Callable[[float], None]
) -> None:
    entries = []
    for number in range(4):
        clock(number)
        entries.append(put(store, states, [number] * 50))
    clock(4)
    assert store.load(entries[0], states) is not None
    store.space = store.bytes + entries[0].nbytes // 2
    clock(10)
    put(store, states, [9] * 50)
    assert store.find([0] * 50) is not None
    assert store.find([1] * 50) is None
    assert store.bytes <= store.space
    assert len(payloads(store)) == len(store)


@pytest.mark.parametrize(("idle_hours", "kept"), [(4, True), (48, False)])
def test_hits_keep_an_entry_for_a_while(
    store: KvStore, states: StatePool, clock: Callable[[float], None], idle_hours: float, kept: bool
) -> None:
    """Sixty hits are worth sixty hours at first, and next to nothing after two idle days."""
    often = put(store, states, [1] * 50)
    for _ in range(60):
        assert store.load(often, states) is not None
    clock(idle_hours - 1)
    put(store, states, [2] * 50)
    clock(idle_hours)
    store.space = store.bytes + often.nbytes // 2
    put(store, states, [3] * 50)
    assert (store.find([1] * 50) is not None) == kept
    assert (store.find([2] * 50) is not None) != kept


def test_what_is_pinned_stays_when_others_leave(store: KvStore, states: StatePool) -> None:
    pinned = put(store, states, [1] * 9, "pinned-claude-0a")
    newer = put(store, states, [2] * 9)
    with reopened(store, space=pinned.nbytes + newer.nbytes) as other:
        put(other, states, [3] * 9)
        assert {entry.label for entry in other.entries()} == {"claude-0a", ""}
        assert other.find([2] * 9) is None


def test_what_is_saved_already_is_pinned_as_it_is(store: KvStore, states: StatePool) -> None:
    tokens = [1, 2, 3]
    before = put(store, states, tokens, "system")
    with reopened(store) as other:
        after = put(store, states, tokens, "pinned-claude")
        assert (after.label, before.label) == ("claude", "")
        assert [path.name for path in store.folder.glob(f"{after.key}.*")] == [f"{after.key}.pinned-claude"]
        assert other.load(before, states) is None  # who knew it by its old name does no harm
        found = other.find(tokens)
        assert found == store.find(tokens)
        assert found is not None
        assert_equal(other.load(found, states), made_up(states, tokens))
    put(store, states, tokens, "end")
    assert [entry.label for entry in store.entries()] == ["claude"], "it stays pinned"


def test_labels_are_found_again_without_the_index(store: KvStore, states: StatePool) -> None:
    put(store, states, [1, 2, 3], "pinned-codex-1b")
    store.close()
    (store.folder / "index.sqlite").write_bytes(b"damaged")
    with pytest.warns(UserWarning, match="made again"), reopened(store) as other:
        assert [entry.label for entry in other.entries()] == ["codex-1b"]


def test_what_cannot_fit_drives_nothing_out(store: KvStore, states: StatePool) -> None:
    small = put(store, states, [1] * 10)
    store.space = store.bytes + 1000
    with pytest.warns(UserWarning, match="do not fit the space of"):
        assert not store.put([2] * 250, made_up(states, [2] * 250), "end")
    assert_equal(store.load(small, states), made_up(states, [1] * 10))


def test_the_space_is_kept_to_the_last_byte(
    store: KvStore, states: StatePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Room is made before writing, for the rows, and once the size is known, for the header."""
    sizes = [put(store, states, [number] * 50).nbytes for number in range(3)]
    header = 0
    in_use = []

    def watched(path: Path, snapshot: Snapshot, fingerprint: str) -> None:
        nonlocal header
        in_use.append(store.bytes)
        save_snapshot(path, snapshot, fingerprint)
        header = 8 + int.from_bytes(path.read_bytes()[:8], "little")

    monkeypatch.setattr("penstock.kv.store.save_snapshot", watched)
    store.space = sum(sizes) + sizes[0] - 1
    put(store, states, [3] * 50)  # all rows would fit, the header does not
    assert (in_use[-1], len(store)) == (sum(sizes), 3)
    store.space = sum(sizes) + sizes[0] - header - 1
    put(store, states, [4] * 50)
    assert (in_use[-1], len(store)) == (sum(sizes) - sizes[0], 3)


def test_less_space_at_the_next_opening(store: KvStore, states: StatePool) -> None:
    entry = put(store, states, [1])
    put(store, states, [2])
    with reopened(store, space=entry.nbytes + 10) as smaller:
        assert len(smaller) == len(payloads(smaller)) == 1


# ── damage ────────────────────────────────────────────────────────────────────────────────────────────────


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


def test_a_payload_of_other_tokens_is_never_used(store: KvStore, states: StatePool) -> None:
    entry, other = put(store, states, [1, 2, 3]), put(store, states, [4, 5, 6])
    os.replace(store.folder / f"{other.key}.prompt", store.folder / f"{entry.key}.prompt")
    with pytest.warns(UserWarning, match="other tokens than its name says"):
        assert store.load(entry, states) is None
    assert store.find([1, 2, 3]) is None


def test_a_payload_of_another_layout_stays(store: KvStore, states: StatePool) -> None:
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
def test_a_damaged_index_is_made_again(store: KvStore, states: StatePool, damage: str) -> None:
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


# ── what an interruption leaves behind ────────────────────────────────────────────────────────────────────


def test_index_and_files_are_made_to_agree(store: KvStore, states: StatePool) -> None:
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


# ── full disks ────────────────────────────────────────────────────────────────────────────────────────────


def test_a_full_disk_costs_only_the_new_session(
    store: KvStore, states: StatePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    older = put(store, states, [1, 2])

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.warns(UserWarning, match="No space left on device"):
            assert not store.put([3, 0], made_up(states, [3, 0]), "end")
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # once is enough
            assert not store.put([3, 1], made_up(states, [3, 1]), "end")
    assert len(payloads(store)) == len(store) == 1
    assert not list(store.folder.glob("*.part"))
    assert_equal(store.load(older, states), made_up(states, [1, 2]))
    put(store, states, [3, 0])


FILL_A_SMALL_DISK = """
import sys, warnings
from pathlib import Path
from penstock.backend.cpu.states import CpuStates
from penstock.kv.store import KvStore
from tests.kv.saved import MODEL, PLENTY, assert_equal, made_up
from tests.published import flash_layout

states = CpuStates(flash_layout("f16", context=64, max_rewind=0))
prompts = [[n] * (4 - n % 4) for n in range(20)]
with warnings.catch_warnings(record=True) as caught, KvStore(Path(sys.argv[1]), PLENTY, MODEL) as store:
    stored = [store.put(tokens, made_up(states, tokens), "end") for tokens in prompts]
assert len(caught) == 1 and "No space left" in str(caught[0].message), [str(warning.message) for warning in caught]
assert 2 < sum(stored) < len(prompts)
with KvStore(Path(sys.argv[1]), PLENTY, MODEL) as store:
    for tokens, kept in zip(prompts, stored):
        entry = store.find(tokens)
        assert (entry is not None) == kept, tokens
        if entry is not None:
            assert_equal(store.load(entry, states), made_up(states, tokens))
print("kept", sum(stored))
"""


def test_a_disk_that_is_really_full(tmp_path: Path) -> None:
    """In a file system of its own, of 8 MiB."""
    inside = f'mount -t tmpfs -o size=8m none "{tmp_path}" && exec "$0" -c "$1" "{tmp_path}"'
    command = ["unshare", "--map-root-user", "--mount", "sh", "-c"]
    try:
        subprocess.run([*command, f'mount -t tmpfs none "{tmp_path}"'], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no file systems may be mounted here")
    done = subprocess.run(
        [*command, inside, sys.executable, FILL_A_SMALL_DISK], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("kept")


# ── several at once ───────────────────────────────────────────────────────────────────────────────────────


def test_a_file_that_another_process_deleted_is_a_miss(store: KvStore, states: StatePool) -> None:
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


def test_threads_and_stores_side_by_side(store: KvStore, states: StatePool) -> None:
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
    tmp_path: Path, states: StatePool, monkeypatch: pytest.MonkeyPatch
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


# ── bad input ─────────────────────────────────────────────────────────────────────────────────────────────


def test_bad_input_is_refused(store: KvStore, states: StatePool, tmp_path: Path) -> None:
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
