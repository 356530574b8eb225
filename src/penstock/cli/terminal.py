"""The terminal: how an answer appears (reasoning dim, an empty line, then what is said), and what a person types: one
line, a pasted text, or several lines on purpose."""

import os
import readline
import select
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from rich.console import Console
from rich.text import Text

from penstock.chat.events import Event, ReasoningDelta, TextDelta

_PASTE_PAUSE = 0.02  # seconds; the lines of a paste arrive together, those of a typist do not
_HISTORY = 1000


def printable(text: str) -> str:
    """Text that cannot steer the terminal: control characters other than line feeds and tabs are replaced."""
    return "".join(c if (c >= " " and not "\x7f" <= c <= "\x9f") or c in "\n\t" else "\ufffd" for c in text)


class Display:
    """Writes events as they come.  Reasoning goes elsewhere if `reasoning` is another console."""

    def __init__(self, answer: Console, reasoning: Console | None = None):
        self.answer, self.reasoning = answer, reasoning or answer
        self._reasoned = False

    def show(self, events: Iterable[Event]) -> None:
        for event in events:
            match event:
                case ReasoningDelta(text):
                    self._write(self.reasoning, text, "dim")
                    self._reasoned = True
                case TextDelta(text):
                    self._end_reasoning()
                    self._write(self.answer, text)
                case _:
                    pass

    def finish(self) -> None:
        if self._reasoned and self.reasoning is not self.answer:
            self.reasoning.print()
        self.answer.print()

    def _end_reasoning(self) -> None:
        if self._reasoned:
            self._write(self.reasoning, "\n\n")
            self._reasoned = False

    def _write(self, console: Console, text: str, style: str = "") -> None:
        console.print(Text(printable(text), style), end="")
        console.file.flush()


def read_message(ask: Callable[[str], str], more: Callable[[], bool], prompt: str = "> ") -> str:
    """The next message.  `ask(prompt)` reads a line; `more()` says whether another is there already.

    A line that ends in a backslash goes on in the next; three quotes open a text that the next three close.  Lines
    that arrive together (a paste into a terminal without bracketed paste) are one message, unless they begin with
    a command.
    """
    line = ask(prompt)
    if line.lstrip().startswith('"""'):
        return _quoted(line.lstrip().removeprefix('"""'), ask)
    lines = [line]
    while lines[-1].endswith("\\") or (not line.startswith("/") and more()):
        continues = lines[-1].endswith("\\")
        if continues:
            lines[-1] = lines[-1][:-1]
        lines.append(ask(". " if continues else ""))
    return "\n".join(lines)


def _quoted(first: str, ask: Callable[[str], str]) -> str:
    lines = [first]
    while not lines[-1].rstrip().endswith('"""'):
        lines.append(ask(". "))
    lines[-1] = lines[-1].rstrip().removesuffix('"""')
    return "\n".join(lines).strip("\n")


def more_typed() -> bool:
    """Whether a terminal has another line waiting.  Other inputs are read line by line."""
    return sys.stdin.isatty() and bool(select.select([sys.stdin], [], [], _PASTE_PAUSE)[0])


def history_path() -> Path:
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "penstock" / "chat_history"


def start_editing() -> None:
    """Line editing with history.  Python turns readline's bracketed paste off; here a paste is one message."""
    readline.parse_and_bind("set enable-bracketed-paste on")
    readline.set_history_length(_HISTORY)
    with suppress(OSError):
        readline.read_history_file(history_path())


def keep_history() -> None:
    """Writes the history for the next time; a file system that refuses is no reason to fail."""
    with suppress(OSError):
        path = history_path()
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600)
        readline.write_history_file(path)
