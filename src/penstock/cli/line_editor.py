"""What a person types: one line, a pasted text, or several lines on purpose; and what they typed before."""

import json
import os
import readline
import select
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from penstock.cli.chat_files import state_folder

_PASTE_PAUSE: Final = 0.02  # seconds; the lines of a paste arrive together, those of a typist do not
_HISTORY: Final = 1000


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


def start_editing(commands: Iterable[str]) -> None:
    """Line editing with history, and Tab for commands.  Python turns readline's bracketed paste off; here a paste is
    one message, and so is what the history has of it."""
    readline.parse_and_bind("set enable-bracketed-paste on")
    readline.parse_and_bind("tab: complete")
    readline.set_completer_delims(" \t\n")
    words = sorted(commands)
    readline.set_completer(lambda start, number: _nth((w for w in words if w.startswith(start)), number))
    readline.set_auto_history(False)
    for message in recalled(history_path()):
        readline.add_history(message)


def _nth(words: Iterable[str], number: int) -> str | None:
    found = list(words)
    return found[number] + " " if number < len(found) else None


def add_to_history(message: str) -> None:
    """For the arrow keys, now and next time.  A file system that refuses is no reason to fail."""
    last = readline.get_current_history_length()
    if message.strip() and not (last and readline.get_history_item(last) == message):
        readline.add_history(message)
        with suppress(OSError):
            keep(history_path(), message)


# ── the file ──────────────────────────────────────────────────────────────────────────────────────────────────────


def history_path() -> Path:
    return state_folder() / "chat_history"


def recalled(path: Path) -> list[str]:
    """The last messages; a line of the file is one of them as JSON, which has no line feeds."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    return [_message(line) for line in lines[-_HISTORY:] if line.strip()]


def _message(line: str) -> str:
    with suppress(ValueError):
        found = json.loads(line)
        if isinstance(found, str):
            return found
    return line


def keep(path: Path, message: str) -> None:
    """Adds a message to the file, which only its owner can read; it never has more than twice what is recalled."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    lines = path.read_bytes().splitlines() if path.exists() else []
    text = json.dumps(message).encode() + b"\n"
    if len(lines) >= 2 * _HISTORY:
        text = b"".join(line + b"\n" for line in lines[-_HISTORY:]) + text
        path.unlink()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        os.fchmod(descriptor, 0o600)  # it may have been there before
        os.write(descriptor, text)
    finally:
        os.close(descriptor)
