"""Ctrl-C at any moment: status 130 and no traceback."""

import subprocess
import sys

import pytest

# Runs the program, and presses Ctrl-C when it begins to import a module.
PROGRAM = """
import os, runpy, signal, sys
module, sys.argv[1:] = sys.argv[1], sys.argv[2:]
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs inherit that it is ignored

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == module:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Finder())
runpy.run_module("penstock", run_name="__main__", alter_sys=True)
"""


@pytest.mark.parametrize(
    ("module", "arguments"),
    [
        ("typer", ["--version"]),
        ("penstock.cli.command", ["--help"]),
        ("penstock.cli.commands.run", ["run", "hello"]),
        ("numpy", ["run", "hello"]),
        ("penstock.model.deepseek_v4.model", ["run", "hello"]),
        ("penstock.tokenizer", ["chat"]),
        ("rich.console", ["inspect"]),
        ("uvicorn", ["serve", "--port", "0"]),
    ],
)
def test_while_modules_are_imported(module: str, arguments: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, module, *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")
