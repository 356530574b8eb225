"""Pages that are made from the code say what the code says."""

import shutil
import subprocess
from pathlib import Path

import pytest

import penstock
from docs.generate.__main__ import DOCS, pages, stale
from docs.generate.api_page import CLASSES
from docs.generate.man_pages import _escaped
from penstock.cli.main import COMMANDS

PAGES = pages()


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(DOCS)))
def test_no_page_is_stale(path: Path) -> None:
    assert path.exists(), "run `make docs`"
    assert path.read_text(encoding="utf-8") == PAGES[path], "run `make docs`"


def test_every_command_has_a_manual_page_and_none_is_left_over() -> None:
    assert {f"penstock-{name}.1" for name in COMMANDS} < {path.name for path in PAGES}
    assert stale() == []


def test_every_exported_name_is_on_the_page_of_the_python_interface() -> None:
    page = PAGES[DOCS / "api.md"]
    shown = {name.removeprefix("penstock.") for name, _ in CLASSES}
    for name in set(penstock.__all__) - {"__version__"}:
        assert name in shown or f"| `{name}` |" in page or f"{name} as error" in page, name


@pytest.mark.parametrize("path", [path for path in PAGES if path.suffix == ".1"], ids=lambda path: path.name)
def test_manual_pages_are_sound(path: Path) -> None:
    mandoc = shutil.which("mandoc")
    if mandoc is None:
        pytest.skip("mandoc is not installed")
    done = subprocess.run(
        [mandoc, "-Tlint", "-Wwarning", str(path)], capture_output=True, text=True, check=False
    )
    # A date would change when nothing else does.
    assert [line for line in done.stdout.splitlines() if "missing date" not in line] == []


def test_text_is_no_markup() -> None:
    assert _escaped(".so /etc/passwd") == r"\&.so /etc/passwd"
    assert _escaped("'b'") == r"\&'b'"
    assert _escaped(r"a\fB-x") == r"a\efB\-x"
