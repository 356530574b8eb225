"""`penstock chat` as a person uses it: through a terminal, and as a filter."""

import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from penstock.chat.messages import Role, Thinking
from penstock.chat.saved import conversation_from_json
from penstock.cli.chat import parse_thinking
from penstock.cli.terminal import printable
from penstock.errors import OptionError
from penstock.weights.synth import synth

# The command as it is, whether or not the program's list of commands has it yet.
PROGRAM = "import typer; from penstock.cli.chat import chat_command; typer.run(chat_command)"
ENVIRONMENT = {**os.environ, "TERM": "xterm", "COLUMNS": "200"}
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]|\r")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("chat") / "m.gguf"
    synth(path, width="tiny", layers=3, ratios=(0, 4, 128), mix="q2")
    return path


class Terminal:
    """A program in a terminal of its own."""

    def __init__(self, model: Path, state: Path, *options: str):
        self.process_id, self.terminal = pty.fork()
        if self.process_id == 0:
            os.environ.update(ENVIRONMENT, XDG_STATE_HOME=str(state))
            signal.signal(
                signal.SIGINT, signal.SIG_DFL
            )  # a shell's background jobs inherit that it is ignored
            os.execv(sys.executable, [sys.executable, "-c", PROGRAM, "-m", str(model), *options])
        self.raw = ""
        self.seen = 0

    def read(self, seconds: float) -> bool:
        if not select.select([self.terminal], [], [], seconds)[0]:
            return False
        try:
            self.raw += os.read(self.terminal, 65536).decode(errors="replace")
        except OSError:  # the program has ended
            return False
        return True

    def expect(self, text: str, seconds: float = 120) -> str:
        """Waits for `text` in what is new; returns what came before it."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            new = ESCAPES.sub("", self.raw)[self.seen :]
            if text in new:
                self.seen += new.index(text) + len(text)
                return new.split(text)[0]
            if not self.read(0.2) and self.ended:
                break
        raise AssertionError(
            f"{text!r} did not come; the terminal shows {ESCAPES.sub('', self.raw)[-2000:]!r}"
        )

    def send(self, text: str) -> None:
        os.write(self.terminal, text.encode())

    def expect_anything(self, seconds: float = 120) -> None:
        """Waits for anything that can be seen."""
        end = time.monotonic() + seconds
        while not ESCAPES.sub("", self.raw)[self.seen :].strip():
            assert time.monotonic() < end
            self.read(0.2)

    def interrupt(self, text: str) -> None:
        """Ctrl-C at the prompt.  One that comes while the line editor is still setting up is lost: repeat it."""
        for _ in range(20):
            self.send("\x03")
            try:
                self.expect(text, seconds=6)
            except AssertionError:
                continue
            return
        shown = ESCAPES.sub("", self.raw)[-2000:]
        raise AssertionError(f"no interrupt brought {text!r}; the terminal shows {shown!r}")

    @property
    def ended(self) -> bool:
        return (
            not Path(f"/proc/{self.process_id}/status").exists()
            or "State:\tZ" in Path(f"/proc/{self.process_id}/status").read_text()
        )

    def status(self, seconds: float = 120) -> int:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.read(0.05)
            done, status = os.waitpid(self.process_id, os.WNOHANG)
            if done:
                self.process_id = 0
                return os.waitstatus_to_exitcode(status)
        raise AssertionError("the program did not end")

    def leave(self) -> None:
        """Ctrl-C until the program ends; see `interrupt`."""
        for _ in range(20):
            self.send("\x03")
            with suppress(AssertionError):
                assert self.status(seconds=6) == 0
                return
        raise AssertionError("no interrupt ended the program")

    def close(self) -> None:
        if self.process_id:
            os.kill(self.process_id, signal.SIGKILL)
            os.waitpid(self.process_id, 0)
        os.close(self.terminal)


@pytest.fixture
def terminal(model: Path, tmp_path: Path) -> Iterator[Terminal]:
    terminal = Terminal(model, tmp_path, "--seed", "3", "--max-tokens", "12")
    yield terminal
    terminal.close()


def test_a_conversation(terminal: Terminal, tmp_path: Path) -> None:
    terminal.expect("> ")
    terminal.send("/system Be brief.\r")
    terminal.expect("Be brief.\n")
    terminal.expect("> ")
    terminal.send("hello\r")
    terminal.expect("hello\n")
    assert terminal.expect("> ").strip()
    terminal.send("\x1b[200~two\nlines\x1b[201~\r")
    terminal.expect("(cut off")
    terminal.send("/think on\r")
    terminal.expect("thinking: low")
    terminal.send('"""a\r')
    terminal.expect(". ")
    terminal.send('b"""\r')
    terminal.expect("(cut off")
    assert "\x1b[2m" in terminal.raw  # reasoning is dim
    terminal.send(f"/save {tmp_path}/talk\r")
    terminal.expect("saved: ")
    terminal.send("/nonsense\r")
    terminal.expect("there is no /nonsense")
    terminal.send("/reset\r")
    terminal.expect("(a new conversation)")
    terminal.send(f"/load {tmp_path}/talk\r")
    terminal.expect("7 messages loaded")
    terminal.send("/help\r")
    terminal.expect("Ctrl-C twice")
    terminal.send("/quit\r")
    assert terminal.status() == 0

    saved = conversation_from_json((tmp_path / "talk").read_text())
    said = [m.content for m in saved.messages if m.role is Role.USER]
    assert said == ["hello", "two\nlines", "a\nb"]
    assert "hello" in (tmp_path / "penstock" / "chat_history").read_text()


def test_lines_that_arrive_together_are_one_message(terminal: Terminal, tmp_path: Path) -> None:
    terminal.expect("> ")
    terminal.send("one\rtwo\r")
    terminal.expect("(cut off")
    terminal.send(f"/save {tmp_path}/talk\r")
    terminal.expect("saved: ")
    # Before the prompt a Ctrl-D would go to the terminal's own line buffer, and be lost.
    terminal.expect("> ")
    terminal.send("\x04")
    assert terminal.status() == 0
    saved = conversation_from_json((tmp_path / "talk").read_text())
    assert [m.content for m in saved.messages if m.role is Role.USER] == ["one\ntwo"]


def test_interrupts(model: Path, tmp_path: Path) -> None:
    terminal = Terminal(model, tmp_path, "--seed", "3", "--max-tokens", "3000")
    try:
        terminal.expect("> ")
        terminal.send("hello\r")
        terminal.expect("hello\n")
        terminal.expect_anything()  # it reads or answers: Ctrl-C stops that
        terminal.send("\x03")
        terminal.expect("(stopped")
        terminal.expect("> ")
        terminal.interrupt("(Ctrl-C again or Ctrl-D to leave)")
        terminal.send("/think\r")
        terminal.expect("thinking: low")
        terminal.expect("> ")
        terminal.interrupt("(Ctrl-C again")
        terminal.expect("> ")
        terminal.leave()
    finally:
        terminal.close()


def test_as_a_filter(model: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, "-m", str(model), "--seed", "3", "-n", "5"]
    result = subprocess.run(
        command, input="hello\n/think maybe\nbye\n", capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    assert "expected off, on, low, high or max" in result.stdout
    assert result.stdout.count("(cut off") == 2
    assert "\x1b" not in result.stdout


def test_the_pocket_model_answers_and_remembers() -> None:
    command = [sys.executable, "-m", "penstock", "chat", "--temperature", "0"]
    told = "What is 17 + 25?\n/think on\nWhat is 17 + 25?\n"
    result = subprocess.run(command, input=told, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    plain, _, thought = result.stdout.partition("thinking: low")
    assert "42" in plain
    assert "carry" in thought or "ones" in thought  # shown, but no marker of it
    assert "42" in thought.rstrip().split("\n\n")[-1]
    assert "think>" not in result.stdout


def test_efforts() -> None:
    assert [parse_thinking(word) for word in ("off", "on", "max")] == [
        Thinking.OFF,
        Thinking.LOW,
        Thinking.MAX,
    ]
    with pytest.raises(OptionError, match="think is 'hard'"):
        parse_thinking("hard")


def test_the_model_cannot_steer_the_terminal() -> None:
    assert printable("a\x1b[31m\tb\n\x9b\x7fé") == "a\ufffd[31m\tb\n\ufffd\ufffdé"
