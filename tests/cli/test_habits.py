"""What people expect of any command: help, completion, wrong flags, files that are none, readers that go away."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.cli import main
from penstock.cli.command import with_effort
from penstock.cli.commands import quantize as quantize_words
from penstock.cli.commands import synth as synth_words
from penstock.pocket import pocket_path
from penstock.weights import mixes, synth
from penstock.weights.widths import WIDTHS

SUBCOMMANDS = {"models": ["rm"], "trace": ["record", "replay", "plot"]}


def penstock(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "penstock", *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env={**os.environ, "COLUMNS": "120", **environment},
        check=False,
    )


@pytest.mark.parametrize("name", main.COMMANDS)
def test_help_is_plain(name: str) -> None:
    shown = penstock(name, "-h")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert shown.stdout.startswith(f"Usage: penstock {name} ")
    assert "-h, --help" in shown.stdout
    for odd in ("<", "│", "\x1b"):  # types for programmers, boxes, colours
        assert odd not in shown.stdout


@pytest.mark.parametrize("name", main.COMMANDS)
def test_help_comes_at_once(name: str) -> None:
    """Nothing is loaded for it that takes longer to load than to read."""
    program = (
        "import sys; from penstock.cli import main; command, *lines = sys.argv[1:]\n"
        "for line in ['', *lines]:\n"
        "    sys.argv = ['penstock', command, *line.split(), '--help']; main._status()\n"
        "heavy = {'numpy', 'rich', 'tokenizers', 'fastapi', 'pydantic', 'huggingface_hub', 'torch'}\n"
        "print(*heavy & set(sys.modules), file=sys.stderr)"
    )
    words = [sys.executable, "-c", program, name, *SUBCOMMANDS.get(name, [])]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stderr.split() == []


def test_words_of_help_are_those_of_the_rooms() -> None:
    assert tuple(mixes.MIXES) == quantize_words.MIXES
    assert tuple(mixes.NAMED) == quantize_words.PARTS
    assert tuple(WIDTHS) == synth_words.WIDTHS
    assert tuple(synth.MIXES) == synth_words.MIXES


def test_a_name_alone_shows_what_there_is() -> None:
    shown = penstock()
    assert (shown.returncode, shown.stderr) == (0, "")
    for name, what in main.COMMANDS.items():
        assert f"  {name} " in shown.stdout
        assert what.split()[-1] in shown.stdout  # whole sentences


@pytest.mark.parametrize(
    ("words", "expected"),
    [("penstock ru", "run"), ("penstock run --memo", "--memory"), ("penstock chat --think m", "max")],
)
def test_completion(words: str, expected: str) -> None:
    at = str(len(words.split()) - 1)
    done = penstock(_PENSTOCK_COMPLETE="complete_bash", COMP_WORDS=words, COMP_CWORD=at)
    assert done.stdout.split() == [expected]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing"], "no such command 'nothing' (see penstock --help)"),
        (["run", "hi", "--zzz"], "run: no such option: --zzz (see penstock run --help)"),
        (["run", "hi", "there"], "run: got unexpected extra argument(s) (there) (see penstock run --help)"),
        (["run", "--model"], "run: option '--model' requires an argument (see penstock run --help)"),
        (["run", "hi", "-m", ""], "run: --model is empty, expected a path (see penstock run --help)"),
        (["bench", "--csv="], "bench: --csv is empty, expected a path (see penstock bench --help)"),
        (["run", "hi", "--seed", "x"], "'x' is not a valid"),
        (["trace", "record"], "trace record: missing option '--output' / '-o'"),
    ],
)
def test_a_wrong_command_line_is_one_line(arguments: list[str], message: str) -> None:
    done = penstock(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("penstock: ")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("args", "takes_text", "expected"),
    [
        (["--think", "high", "Why?"], True, ["--think", "high", "Why?"]),
        (["--think", "Why?"], True, ["--think=on", "Why?"]),
        (["Why?", "--think"], True, ["Why?", "--think=on"]),
        (["--think", "-n", "5"], True, ["--think=on", "-n", "5"]),
        (["--", "--think"], True, ["--", "--think"]),
        (["--think", "hard"], False, ["--think", "hard"]),
    ],
)
def test_think_may_stand_alone(args: list[str], takes_text: bool, expected: list[str]) -> None:
    assert with_effort(args, takes_text) == expected


def test_what_is_no_file_is_no_model(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path, found in ((tmp_path / "pipe", "a pipe"), (Path("/dev/null"), "a device")):
        done = penstock("inspect", path)
        assert done.returncode == 1
        assert done.stderr == f"penstock: {path}: expected a model file, found {found}\n"


def test_nothing_is_packed_into_the_package() -> None:
    done = penstock("pack", "--force")
    assert done.returncode == 1
    assert "lies in Penstock's own folder, as the pocket model does; -o names another place" in done.stderr
    assert [path.name for path in pocket_path().parent.glob("*.pack*")] == []


@pytest.mark.parametrize(
    "arguments", [["--help"], ["run", "--help"], ["inspect", "--tensors"], ["inspect", "--json"]]
)
def test_whoever_read_the_output_has_gone(arguments: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "penstock", *arguments],
        stdout=writer,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, b"")


def test_letters_that_a_terminal_does_not_know() -> None:
    done = penstock("inspect", "/nowhere/ä", PYTHONIOENCODING="ascii")
    assert done.returncode == 1
    assert done.stderr.startswith("penstock: /nowhere/?: no such file or folder")
