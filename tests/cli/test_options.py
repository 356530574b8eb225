"""Options are declared once: what is derived from that, and when it is loaded."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.cli import main
from penstock.errors import OptionError

ROOT = Path(__file__).parents[2]
HEAVY = ("rich", "numpy", "torch", "fastapi", "pydantic", "uvicorn", "tokenizers")


def python(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "COLUMNS": "120", "NO_COLOR": "1", **environment},
        check=False,
    )


def test_a_new_option_is_one_edit() -> None:
    done = python("-m", "tests.cli.one_edit")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", main.COMMANDS)
def test_the_list_of_commands_says_what_the_commands_say(name: str) -> None:
    command = main.load(name)
    assert command.name == name
    assert command.help.split("\n\n")[0].replace("\n", " ") == main.COMMANDS[name]


def test_nothing_heavy_is_loaded_before_a_command_is_known() -> None:
    program = "import sys, penstock.cli.main; print(*sys.modules)"
    loaded = python("-c", program).stdout.split()
    assert "penstock.cli.main" in loaded
    assert not {*HEAVY, *(f"penstock.cli.{name}" for name in main.COMMANDS)} & set(loaded)


def test_a_command_that_is_nearly_one() -> None:
    done = python("-m", "penstock", "serv")
    assert done.returncode == 2
    assert "serve" in done.stderr


@pytest.mark.parametrize(
    ("variable", "value", "expected"),
    [
        ("PENSTOCK_ISA", "avx", "PENSTOCK_ISA is 'avx', expected one of scalar, avx2"),
        ("PENSTOCK_API_KEY", "", "PENSTOCK_API_KEY is '', expected text"),
    ],
)
def test_a_variable_that_cannot_have_its_value(variable: str, value: str, expected: str) -> None:
    done = python("-m", "penstock", "inspect", **{variable: value})
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"penstock: {expected}")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (("--device", "cuda"), "device is 'cuda': this machine has no NVIDIA GPU"),
        (("--vram", "8GiB"), "no GPU is used"),
        (("--vram", "lots"), "--vram is 'lots', expected an amount such as 8GiB"),
        (("--memory", "lots"), "--memory is 'lots', expected an amount such as 8GiB"),
        (("--draft", "on"), "draft is 'on', expected one of auto, off, mtp, dspark, ngram"),
        (("--draft", "off", "--mtp", "block.gguf"), "draft is 'off', which leaves the draft block out"),
        (("--threads", "0"), "threads is 0, expected a whole number from 1"),
    ],
)
def test_mistakes_name_the_option_and_what_was_expected(flags: tuple[str, str], expected: str) -> None:
    with pytest.raises(OptionError, match=expected):
        main.app(["run", "Hello", *flags], standalone_mode=False)
