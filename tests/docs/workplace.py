"""A folder as a reader has it: a model, the programs on PATH, and nothing of the user's own.

    with Workplace(folder) as place:
        place.run(command)

A server in the foreground is started on a free port, asked whether it is well, and stopped; one in the background
stays until the end, and everything that is addressed to port 8080 reaches it.
"""

import os
import pty
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final, Self
from urllib.error import HTTPError
from urllib.request import ProxyHandler, build_opener

from penstock.clients.setups import SETUPS
from penstock.clients.target import Target
from penstock.pocket import pocket_path
from tests.docs.pages import ROOT, Command
from tests.measured import machine_known
from tests.weights.official import official_checkpoint, official_config

STUCK_S: Final = 900  # a command that takes so long will not end at all
ADDRESS: Final = "127.0.0.1:8080"
_ESCAPES: Final = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Workplace:
    def __init__(self, folder: Path):
        self.folder = folder
        self._programs, self._home = folder / "bin", folder / "home"
        self._stack = ExitStack()
        self._url: str | None = None

    def __enter__(self) -> Self:
        self._programs.mkdir(parents=True)
        self._home.mkdir()
        self._program("penstock", f'exec {shlex.quote(sys.executable)} -m penstock "$@"')
        for name in ("python", "python3"):
            self._program(name, f'exec {shlex.quote(sys.executable)} "$@"')
        for setup in SETUPS.values():  # clients that end well; the real ones are for `make test-clients`
            self._program(setup(Target("http://nowhere")).command[0], "exit 0")
        self._program("claude", f'exec {shlex.quote(sys.executable)} {ROOT}/tests/clients/fake_agent.py "$@"')
        self._stack.enter_context(machine_known(self._home / ".cache"))
        shutil.copy(pocket_path(), self.folder / "model.gguf")
        (self.folder / "notes.txt").write_text("The tower in Orly was built in 1908.\n")
        (self.folder / "text.txt").write_text("The tower in Orly was built in 1908.\n" * 100)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def run(self, command: Command) -> None:
        """Fails with what the command said, if it does not end well or says something else than the page shows."""
        if "DeepSeek-V4-Flash/" in command.text:
            self._make_checkpoint()
        if command.text.startswith("penstock serve"):
            self._serve(command)
            return
        text = self._addressed(command.text)
        if command.output is not None:
            found = self._on_a_terminal(text)
            assert found.strip() == command.output.strip(), f"{command}\n{found}"
            return
        done = subprocess.run(
            ["bash", "-o", "pipefail", "-c", text],
            cwd=self.folder,
            env=self._environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=STUCK_S,
            check=False,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"

    def run_python(self, program: str, page: str) -> None:
        """All Python of a page, in one process: a later block goes on where an earlier one ended."""
        file = self.folder / "blocks.py"
        file.write_text(program, encoding="utf-8")
        done = subprocess.run(
            [sys.executable, file.name],
            cwd=self.folder,
            env=self._environment(),
            capture_output=True,
            text=True,
            timeout=STUCK_S,
            check=False,
        )
        assert done.returncode == 0, f"{page}\n{done.stdout}{done.stderr}"

    def _program(self, name: str, script: str) -> None:
        (self._programs / name).write_text(f"#!/bin/sh\n{script}\n")
        (self._programs / name).chmod(0o755)

    def _make_checkpoint(self) -> None:
        folder = self.folder / "DeepSeek-V4-Flash"
        if not folder.exists():
            folder.mkdir()
            official_checkpoint(folder, official_config(), seed=0, mtp=True)

    def _environment(self) -> dict[str, str]:
        own = {
            name: value for name, value in os.environ.items() if not name.startswith(("XDG_", "PENSTOCK_"))
        }
        return {
            **own,
            "HOME": str(self._home),
            "PATH": f"{self._programs}:{os.environ['PATH']}",
            "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}",
            "COLUMNS": "120",
            "NO_COLOR": "1",
            "OMP_NUM_THREADS": "1",
        }

    # ── a terminal ────────────────────────────────────────────────────────────────────────────────────────

    def _on_a_terminal(self, text: str) -> str:
        """What a person sees."""
        ours, theirs = pty.openpty()
        environment = {**self._environment(), "TERM": "dumb"}
        process = subprocess.Popen(
            ["bash", "-c", text], cwd=self.folder, env=environment, stdin=theirs, stdout=theirs, stderr=theirs
        )
        os.close(theirs)
        seen = b""
        with suppress(OSError):  # what a terminal says when the last program has closed it
            while piece := os.read(ours, 65536):
                seen += piece
        os.close(ours)
        assert process.wait(STUCK_S) == 0, seen.decode()
        return _ESCAPES.sub("", seen.decode()).replace("\r", "")

    # ── servers ───────────────────────────────────────────────────────────────────────────────────────────

    def _addressed(self, text: str) -> str:
        """The command, for the server of this page."""
        if ADDRESS in text:
            text = text.replace(ADDRESS, self._server().removeprefix("http://"))
        for name in ("penstock launch", "penstock warm"):
            if text.startswith(name) and "--url" not in text:
                text = f"{name} --url {self._server()}{text.removeprefix(name)}"
        return text

    def _server(self) -> str:
        if self._url is None:
            self._url = self._start("penstock serve -m model.gguf")
        return self._url

    def _serve(self, command: Command) -> None:
        words = shlex.split(command.text, comments=True)
        if words[-1] == "&":
            assert self._url is None, f"{command}: another server is running on this page"
            self._url = self._start(shlex.join(words[:-1]))
            return
        with ExitStack() as stack:
            self._start(command.text.split(" #")[0], stack)

    def _start(self, text: str, stack: ExitStack | None = None) -> str:
        """A server that is well; at the end of the stack it has to end well."""
        text = text.replace("~", str(self._home))
        words = [*shlex.split(text), "--port", "0"]
        process = subprocess.Popen(
            words,
            cwd=self.folder,
            env=self._environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        (self._stack if stack is None else stack).callback(_stop, process)
        assert process.stdout is not None
        assert process.stderr is not None
        line = process.stdout.readline()
        assert "listening on" in line, f"{text}\n{line}{process.stderr.read()}"
        url = line.split()[-1]
        deadline = time.monotonic() + STUCK_S
        while not _is_well(url):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        return url


def _is_well(url: str) -> bool:
    try:
        with build_opener(ProxyHandler({})).open(f"{url}/health", timeout=60) as answer:
            return bool(answer.status == 200)
    except HTTPError:
        return False


def _stop(process: "subprocess.Popen[str]") -> None:
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=STUCK_S)
    assert process.returncode == 0, said
