"""A client that is started to ask one question, and ended when the server has read what comes before it."""

import os
import signal
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Callable
from typing import Any, Final, Self

from penstock.clients.target import Target, call
from penstock.errors import PenstockError

LOOK_S: Final = 1.0  # between two looks at the server
SETTLED_S: Final = 3.0  # without anything new being read after which there will be no more of it
SILENT_S: Final = 120.0  # after which a client without a screen will not ask any more
LEAVE_S: Final = 5.0  # that a client has to end
# What a client that is ended may leave of its screen: the other buffer, pasting and mouse modes, a hidden cursor.
_RESET: Final = "\x1b[?1049l\x1b[?2004l\x1b[?1000l\x1b[?1002l\x1b[?1003l\x1b[?1006l\x1b[?25h\x1b[0m\r\n"


class ClientRun:
    """The client as a process, ended on leaving.  screen: it has the terminal; else nobody sees it."""

    def __init__(self, command: list[str], environment: dict[str, str], screen: bool):
        self.command, self.screen = command, screen
        self._environment = {**os.environ, **environment}
        self._said = tempfile.TemporaryFile()  # noqa: SIM115  closed on leaving

    def __enter__(self) -> Self:
        streams: dict[str, Any] = {}
        if self.screen:
            self._terminal = termios.tcgetattr(sys.stdin)
        else:
            streams = {"stdin": subprocess.DEVNULL, "stdout": self._said, "stderr": subprocess.STDOUT}
        self._process = subprocess.Popen(
            self.command, env=self._environment, start_new_session=not self.screen, **streams
        )
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._send(signal.SIGTERM)
            try:
                self._process.wait(LEAVE_S)
            except subprocess.TimeoutExpired:
                self._send(signal.SIGKILL)
                self._process.wait()
        self._said.close()
        if self.screen:
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, self._terminal)
            sys.stdout.write(_RESET)
            sys.stdout.flush()

    def _send(self, number: int) -> None:
        """To the client, and to what it has started where that is known to be its own."""
        if self.screen:
            self._process.send_signal(number)
        else:
            os.killpg(self._process.pid, number)

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None

    def last_words(self) -> str:
        """What it said at the end, in a line."""
        self._said.seek(0)
        lines = self._said.read().decode("utf-8", "replace").split("\n")
        words = next((line.strip() for line in reversed(lines) if line.strip()), "it said nothing")
        return "".join(letter for letter in words if letter.isprintable())[:200]


def read_ahead(client: ClientRun, target: Target, label: str, tell: Callable[[str], None]) -> int:
    """Lets the client ask until the server has read and kept what it begins with; how many tokens that is.  `tell`
    hears how far it is."""
    before = _pin(target, label)["pins"]
    with client as running:
        return _wait(running, target, label, before, tell)


def _wait(running: ClientRun, target: Target, label: str, before: int, tell: Callable[[str], None]) -> int:
    begun = quiet = time.monotonic()
    program = running.command[0]
    while True:
        answer = _pin(target, label)
        came, tokens = answer["pins"] > before, answer["pinned"].get(label, 0)
        progress = _reading(target, tokens)
        now = time.monotonic()
        if progress:
            tell(progress)
        if progress or not came:
            quiet = now
        elif tokens and (running.ended or now - quiet > SETTLED_S):
            return int(tokens)
        elif now - quiet > SILENT_S:
            raise PenstockError(
                "the server has read the prompt but does not keep it: see its log, and --kv-space"
            )
        if running.ended and not came:
            raise PenstockError(f"{program} has ended without a question: {running.last_words()}")
        if not came and not running.screen and now - begun > SILENT_S:
            raise PenstockError(f"{program} has asked nothing for {SILENT_S:.0f} s: {running.last_words()}")
        time.sleep(LOOK_S)


def _pin(target: Target, label: str) -> dict[str, Any]:
    """Asks the server to keep prompts that come now, as it has to be asked again and again."""
    answer = _answer(target, "/props", {"pin": label})
    if not isinstance(answer, dict) or not isinstance(answer.get("pinned"), dict) or "pins" not in answer:
        raise PenstockError(f"{target.url}: that server cannot keep prompts; it may be an older one")
    return answer


def _reading(target: Target, kept: int) -> str:
    """How far a prompt is that is being read; empty if none is.  One that goes on from what is kept does not count:
    an agent that has its answer may go on for long."""
    for slot in _answer(target, "/slots"):
        if slot.get("is_processing") and (slot["n_prompt_tokens_cache"] < kept or not kept):
            read = slot["n_prompt_tokens_processed"] + slot["n_prompt_tokens_cache"]
            if read < slot["n_prompt_tokens"]:
                return f"{read:,} of {slot['n_prompt_tokens']:,} tokens are read"
    return ""


def _answer(target: Target, path: str, body: Any = None) -> Any:
    try:
        return call(target, path, body)
    except OSError as error:
        raise PenstockError(f"{target.url} does not answer any more: {error}") from None
