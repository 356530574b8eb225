"""Killing whoever saves: the judge sees what is lost, damaged or left over."""

from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from benchmarks.kill_saves import MODEL, SAMPLE, SPACE, Judge, arguments, pocket_states, run, session
from penstock.errors import OptionError
from penstock.kv.store import KINDS, KvStore


@pytest.fixture
def judge(tmp_path: Path) -> Judge:
    """Three sessions are saved and noted."""
    judge = Judge(tmp_path / "store", tmp_path / "journal", pocket_states(), seed=1)
    with KvStore(judge.folder, SPACE, MODEL) as store:
        for number in range(3):
            made = session(judge.states, number)
            assert store.put(made.tokens, made, KINDS[number])
    judge.journal.write_bytes(b"".join(note.to_bytes(4, "little") for note in range(6)))
    return judge


def test_all_is_well(judge: Judge) -> None:
    judge.look()
    judge.load_all()
    assert judge.count.good
    assert (judge.count.kills, judge.count.saved, judge.count.loaded) == (1, 3, 3 + SAMPLE + 3)
    assert judge.count.in_the_middle == 0


def test_what_is_lost_is_seen_without_loading_all(judge: Judge) -> None:
    judge.look()
    next(judge.folder.glob(f"*.{KINDS[1]}")).unlink()
    judge.look()
    assert set(judge.count.lost) == {1}


def test_what_is_damaged_is_seen(judge: Judge) -> None:
    path = next(judge.folder.glob(f"*.{KINDS[2]}"))
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    judge.look()
    judge.load_all()
    assert 2 in judge.count.corrupted
    assert not judge.count.good


def test_what_nobody_cleared_away_is_seen(judge: Judge) -> None:
    (judge.folder / "rubbish.part").write_bytes(b"some of it")
    judge.look()
    judge.load_all()
    assert judge.count.left_over == ["rubbish.part"]


def test_a_session_that_was_saved_but_not_noted_was_in_the_middle(judge: Judge) -> None:
    judge.journal.write_bytes(judge.journal.read_bytes()[:-4])
    judge.look()
    judge.load_all()
    assert (judge.count.in_the_middle, judge.count.good) == (1, True)


def test_sessions_are_the_same_whenever_they_are_made() -> None:
    layout = pocket_states()
    one, again, other = (session(layout, number).state.tensors() for number in (97, 97, 195))
    assert all(np.array_equal(one[name], again[name]) for name in one)
    assert not all(np.array_equal(one[name], other[name]) for name in one)


def test_a_few_kills(tmp_path: Path) -> None:
    options = arguments().parse_args(["--kills", "3", "--folder", str(tmp_path)])
    count = run(options, Console(quiet=True))
    assert (count.in_the_middle, count.good) == (3, True)
    assert not list(tmp_path.iterdir())
    with pytest.raises(OptionError, match="--kills"):
        run(arguments().parse_args(["--kills", "0"]), Console(quiet=True))
