"""What README and docs say is run; what cannot be run here is held against the flags that there are."""

import doctest
import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]

import penstock
from penstock.cli.main import COMMANDS, load
from penstock.pocket import pocket_path
from tests.docs.command_lines import PROGRAMS, complaint
from tests.docs.pages import (
    LANGUAGES,
    NEEDS,
    PAGES,
    ROOT,
    Command,
    blocks,
    links,
    markers,
    prose,
    read,
    spans,
)
from tests.docs.workplace import Workplace

every_page = pytest.mark.parametrize("page", PAGES)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Workplace]:
    with Workplace(tmp_path / "place") as found:
        yield found


def _commands(page: str, *needs: str) -> list[Command]:
    return [command for block in blocks(page) for command in block.commands if command.needs in needs]


# ── what is run ───────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("page", [page for page in PAGES if _commands(page, "")])
def test_commands_do_what_the_page_says(page: str, place: Workplace) -> None:
    for command in _commands(page, ""):
        place.run(command)


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if _commands(page, "minutes")])
def test_commands_that_take_minutes(page: str, place: Workplace) -> None:
    for command in _commands(page, "minutes"):
        place.run(command)


@pytest.mark.parametrize(
    "page", [page for page in PAGES if any(b.language == "python" for b in blocks(page))]
)
def test_python_runs(page: str, place: Workplace) -> None:
    program = ""
    for block in blocks(page):
        if block.language == "python" and not block.need():
            program += (
                "\n" * (block.line - program.count("\n")) + block.text
            )  # tracebacks name the page's lines
    place.run_python(program, page)


@pytest.mark.parametrize("page", [page for page in PAGES if any(b.language == "pycon" for b in blocks(page))])
def test_examples_answer_as_shown(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("model.gguf").symlink_to(pocket_path())
    said: list[str] = []
    with penstock.Engine("model.gguf") as engine:
        for block in blocks(page):
            if block.language == "pycon":
                known = {"penstock": penstock, "engine": engine, "session": engine.session()}
                test = doctest.DocTestParser().get_doctest(block.text, known, page, page, block.line)
                doctest.DocTestRunner().run(test, out=said.append)
    assert not said, "".join(said)


@every_page
def test_data_can_be_read(page: str) -> None:
    readers = {"json": json.loads, "toml": tomllib.loads, "yaml": yaml.safe_load}
    for block in blocks(page):
        if block.language in readers:
            readers[block.language](block.text)


# ── what is held against the programs ─────────────────────────────────────────────────────────────────────


@every_page
def test_commands_flags_and_targets_exist(page: str) -> None:
    lines = [command.text for block in blocks(page) for command in block.commands]
    lines += [span for span in spans(page) if re.match(rf"([A-Z_]+=\S+ )*({'|'.join(PROGRAMS)}) ", span)]
    assert [found for line in lines if (found := complaint(line))] == []


@pytest.mark.parametrize("name", COMMANDS)
def test_examples_in_help_texts_exist(name: str) -> None:
    command = load(name)
    helps = [command.help, *(found.help for found in getattr(command, "commands", {}).values())]
    for text in helps:
        for example in re.findall(r"Example: (.*)", text or ""):
            assert complaint(example) is None


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("penstock rum hello", "no command 'rum'"),
        ("penstock run --temprature 0 hello", "No such option"),
        ("penstock trace reply x", "no command 'reply'"),
        ("echo a | penstock run - --no-such", "No such option"),
        ("PENSTOCK_ISA=avx2 python -m benchmarks.start --instal", "knows no --instal"),
        ("python -m benchmarks.nothing", "there is no benchmarks/nothing.py"),
        ("make test-everything", "no target"),
        ("penstock launch emacs", "emacs"),
        ("pytest tests/nowhere.py", "there is no tests/nowhere.py"),
    ],
)
def test_what_is_wrong_is_found(line: str, found: str) -> None:
    assert found in (complaint(line) or "")


# ── the form of pages ─────────────────────────────────────────────────────────────────────────────────────


@every_page
def test_blocks_say_what_they_are(page: str) -> None:
    assert [block.line for block in blocks(page) if block.language not in LANGUAGES] == []
    assert read(page).count("```") == 2 * len(blocks(page))
    loose = rf"^ {{4,}}(?:\$ )?({'|'.join(PROGRAMS)}) .*"
    assert re.findall(loose, prose(page), re.MULTILINE) == [], "commands belong into a block of `sh`"
    for block in blocks(page):
        if block.language == "text":
            assert not re.search(rf"^(?:\$ )?({'|'.join(PROGRAMS)}) ", block.text, re.MULTILINE)


@every_page
def test_markers_are_known_and_mark_something(page: str) -> None:
    marked = [(block, reason, start) for block in blocks(page) for reason, start in block.needs]
    assert len(marked) == len(markers(page)), "a marker is misspelt, or no block follows it"
    assert {reason for _, reason, _ in marked} <= NEEDS.keys()
    for block, _, start in marked:
        assert not start or any(command.text.startswith(start) for command in block.commands), start


@every_page
def test_files_that_are_named_are_there(page: str) -> None:
    beside = (ROOT / page).parent
    assert [target for target in links(page) if not (beside / target).exists()] == []
    rooms = {path.name for path in (ROOT / "src" / "penstock").iterdir() if path.is_dir()}
    named = [
        span for span in spans(page) if re.fullmatch(r"[\w.]+/[\w./-]*\w\.(py|md|cpp|h|cu|svg|json)", span)
    ]
    for span in named:
        folder = span.split("/")[0]
        places = [ROOT / span, beside / span] + (
            [ROOT / "src" / "penstock" / span] if folder in rooms else []
        )
        assert any(path.exists() for path in places), span
