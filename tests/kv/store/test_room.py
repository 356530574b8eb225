"""Which sessions leave when there is no room, and what a full disk costs."""

import errno
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.backend.state import StateMemory
from penstock.kv.snapshot import Snapshot, save_snapshot
from penstock.kv.store import KvStore
from tests.kv.saved import assert_equal, made_up
from tests.kv.store.entries import payloads, put, reopened


def test_the_least_recently_used_go_first(
    store: KvStore, states: StateMemory, clock: Callable[[float], None]
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
    store: KvStore, states: StateMemory, clock: Callable[[float], None], idle_hours: float, kept: bool
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


def test_what_is_pinned_stays_when_others_leave(store: KvStore, states: StateMemory) -> None:
    pinned = put(store, states, [1] * 9, "pinned-claude-0a")
    newer = put(store, states, [2] * 9)
    with reopened(store, space=pinned.nbytes + newer.nbytes) as other:
        put(other, states, [3] * 9)
        assert {entry.label for entry in other.entries()} == {"claude-0a", ""}
        assert other.find([2] * 9) is None


def test_what_is_saved_already_is_pinned_as_it_is(store: KvStore, states: StateMemory) -> None:
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


def test_what_cannot_fit_drives_nothing_out(store: KvStore, states: StateMemory) -> None:
    small = put(store, states, [1] * 10)
    store.space = store.bytes + 1000
    with pytest.warns(UserWarning, match="do not fit the space of"):
        assert not store.put([2] * 250, made_up(states, [2] * 250), "end")
    assert_equal(store.load(small, states), made_up(states, [1] * 10))


def test_the_space_is_kept_to_the_last_byte(
    store: KvStore, states: StateMemory, monkeypatch: pytest.MonkeyPatch
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


def test_less_space_at_the_next_opening(store: KvStore, states: StateMemory) -> None:
    entry = put(store, states, [1])
    put(store, states, [2])
    with reopened(store, space=entry.nbytes + 10) as smaller:
        assert len(smaller) == len(payloads(smaller)) == 1


def test_a_full_disk_costs_only_the_new_session(
    store: KvStore, states: StateMemory, monkeypatch: pytest.MonkeyPatch
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
