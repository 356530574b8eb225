"""Notes from one run to the next: never the user's own while tests run, and never too many."""

import subprocess
import sys
import tempfile
from pathlib import Path

from penstock.machine import notes
from penstock.machine.notes import notes_folder, notes_path, recall, remember


def test_tests_have_a_folder_of_their_own_and_so_have_their_children() -> None:
    program = "from penstock.machine.notes import notes_folder; print(notes_folder())"
    child = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert Path(child.stdout.strip()) == notes_folder()
    assert notes_folder().is_relative_to(tempfile.gettempdir())


def test_the_oldest_are_forgotten() -> None:
    for number in range(notes.MOST + 2):
        remember("x", str(number), number)
    remember("x", "2", "again")
    found = recall("x")
    assert len(found) == notes.MOST
    assert "0" not in found
    assert list(found.items())[-1] == ("2", "again")


def test_a_damaged_file_is_as_good_as_none() -> None:
    for text in ("", "{", "[1]", "[" * 100_000):
        notes_path("x").write_text(text)
        assert recall("x") == {}
    remember("x", "a", 1)
    assert recall("x") == {"a": 1}
