"""Tests never write to the user's caches and settings, nor do the programs they start."""

import ctypes.util
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.machine.notes import notes_path, remember
from tests import home

REAL = Path(os.environ[home.REAL].split(os.pathsep)[0])
CACHE = Path(os.environ[home.REAL].split(os.pathsep)[1])


@pytest.fixture
def caught() -> Iterator[list[str]]:
    """What the watch has noticed in this test, which is meant to be noticed."""
    home.TRESPASSES.clear()
    yield home.TRESPASSES
    home.TRESPASSES.clear()


def test_home_is_a_temporary_folder_here_and_in_children() -> None:
    where = "from penstock.machine.notes import notes_path as p; from pathlib import Path; print(p('x'), Path.home())"
    child = subprocess.run([sys.executable, "-c", where], capture_output=True, text=True, check=True)
    note, place = child.stdout.split()
    assert note == str(notes_path("x"))
    assert place == os.environ["HOME"] != str(REAL)
    assert not any(Path(note).is_relative_to(real) for real in (REAL, CACHE))


@pytest.mark.parametrize(
    "write",
    [
        lambda path: path.write_text(""),
        lambda path: path.mkdir(),
        lambda path: path.symlink_to("/"),
        lambda path: os.rename(__file__, path),
        lambda path: sqlite3.connect(path),
    ],
)
@pytest.mark.parametrize("place", [CACHE / "penstock-never", REAL / ".penstock-never"])
def test_writing_to_the_real_one_is_stopped(
    write: Callable[[Path], object], place: Path, caught: list[str]
) -> None:
    with pytest.raises(AssertionError, match="the user's own"):
        write(place)
    assert len(caught) == 1
    assert not place.exists()


def test_code_that_swallows_errors_is_caught_too(monkeypatch: pytest.MonkeyPatch, caught: list[str]) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(CACHE))
    with pytest.raises(AssertionError):
        remember("never", "key", "value")
    assert caught


@pytest.mark.parametrize(
    "environment", [{}, {"HOME": str(REAL)}, {"HOME": "/tmp", "XDG_CACHE_HOME": str(CACHE)}]
)
def test_a_child_with_the_real_one_is_not_started(environment: dict[str, str], caught: list[str]) -> None:
    with pytest.raises(AssertionError, match="is started with the user's own"):
        subprocess.run([sys.executable, "-c", ""], env=environment, check=False)
    assert len(caught) == 1


def test_python_may_ask_where_libraries_lie(caught: list[str]) -> None:
    assert ctypes.util.find_library("m")
    assert not caught


def test_reading_there_is_allowed() -> None:
    list(REAL.iterdir())
