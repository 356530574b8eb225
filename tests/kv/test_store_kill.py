"""A process that saves sessions may be killed at any moment: what it had saved is there, whole, and nothing else."""

import itertools
import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path

import numpy as np
import pytest

import penstock
from penstock.backend.cpu.states import CpuStates
from penstock.backend.state import StateLayout, StateMemory
from penstock.kv.snapshot import save_snapshot
from penstock.kv.store import KINDS, KvStore
from tests.kv.saved import MODEL, PLENTY, assert_equal, made_up

# One process imports everything once; the others are forked from it, so that a kill costs milliseconds.
START = multiprocessing.get_context("forkserver")
START.set_forkserver_preload(["pytest", __name__])
LONGEST_LIFE_S = 0.08
PATIENCE_S = 300  # for what takes milliseconds on an idle machine


def prompt(number: int) -> list[int]:
    """Tokens of the session with this number: 3 to 100, different for every number below 16 million."""
    return [number % 251, number // 251 % 251, number // 251**2, *([7] * (number % 98))]


def save_on_and_on(folder: Path, space: int, layout: StateLayout, first: int, journal: Path) -> None:
    """Saves sessions first, first + 1 …, and notes in the journal which of them are done."""
    states = CpuStates(layout)
    notes = os.open(journal, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    with KvStore(folder, space, MODEL) as store:
        for number in itertools.count(first):
            tokens = prompt(number)
            assert store.put(tokens, made_up(states, tokens), KINDS[number % len(KINDS)])
            os.write(notes, number.to_bytes(4, "little"))


def started(*arguments: object) -> BaseProcess:
    process = START.Process(target=save_on_and_on, args=arguments)
    process.start()
    return process


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


def kill(process: BaseProcess) -> None:
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert process.exitcode == -signal.SIGKILL, "the process ended by itself"
    process.close()


def noted(journal: Path) -> list[int]:
    return np.frombuffer(journal.read_bytes(), "<u4").tolist() if journal.exists() else []


def assert_whole(store: KvStore, states: StateMemory, number: int) -> None:
    tokens = prompt(number)
    entry = store.find(tokens, at_least=len(tokens))
    assert entry is not None, f"session {number} is lost"
    assert_equal(store.load(entry, states), made_up(states, tokens))


def assert_tidy(store: KvStore) -> None:
    """The files are those of the entries, and no leftovers."""
    expected = {f"{entry.key}.{entry.kind}" for entry in store.entries()}
    extra = {"index.sqlite", "index.sqlite-wal", "index.sqlite-shm", "lock"}
    assert {path.name for path in store.folder.iterdir()} - extra == expected


@pytest.mark.parametrize("kills", [100, pytest.param(1000, marks=pytest.mark.slow)])
@pytest.mark.filterwarnings("error")
def test_nothing_saved_is_lost(engine: penstock.Engine, tmp_path: Path, kills: int) -> None:
    states, folder, journal = engine.states, tmp_path / "store", tmp_path / "journal"
    rng = np.random.default_rng(kills)
    checked = 0
    for _ in range(kills):
        process = started(folder, PLENTY, states.layout, len(noted(journal)), journal)
        time.sleep(rng.uniform(0.0, LONGEST_LIFE_S))
        kill(process)
        done = noted(journal)
        assert done == list(range(len(done)))
        with KvStore(folder, PLENTY, MODEL) as store:
            assert_tidy(store)
            assert len(done) <= len(store) <= len(done) + 1  # one more: killed before it could be noted
            for number in done[checked:]:
                assert_whole(store, states, number)
            if done:
                assert_whole(store, states, int(rng.integers(len(done))))
        checked = len(done)
    process = started(folder, PLENTY, states.layout, len(done), journal)
    until(lambda: len(noted(journal)) > len(done))
    kill(process)
    with KvStore(folder, PLENTY, MODEL) as store:
        for number in noted(journal):
            assert_whole(store, states, number)


@pytest.mark.filterwarnings("error")
def test_two_at_a_time_where_old_sessions_must_go(engine: penstock.Engine, tmp_path: Path) -> None:
    """Deleting is interrupted too, and one process goes on while the other is killed."""
    states, folder = engine.states, tmp_path / "store"
    save_snapshot(tmp_path / "one", made_up(states, prompt(97)), MODEL)
    space = 4 * (tmp_path / "one").stat().st_size
    rng = np.random.default_rng(2)
    survivor = started(folder, space, states.layout, 1_000_000, tmp_path / "survivor")
    try:
        for turn in range(25):
            process = started(folder, space, states.layout, 1000 * turn, tmp_path / "victim")
            time.sleep(rng.uniform(0.0, LONGEST_LIFE_S))
            kill(process)
            with KvStore(folder, space, MODEL) as store:
                assert store.bytes <= space
                for entry in store.entries():
                    snapshot = store.load(entry, states)  # None: the survivor has deleted it
                    if snapshot is not None:
                        assert_equal(snapshot, made_up(states, snapshot.tokens))
        until(lambda: len(noted(tmp_path / "survivor")) > 0)
    finally:
        kill(survivor)
    with KvStore(folder, space, MODEL) as store:
        assert_tidy(store)
        assert 0 < store.bytes <= space
