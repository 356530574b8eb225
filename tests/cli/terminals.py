"""A program in a terminal of its own, as a person uses it."""

import os
import pty
import re
import select
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

ENVIRONMENT = {**os.environ, "TERM": "xterm", "COLUMNS": "200"}
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]|\r")


class Terminal:
    """`penstock`, or another program of Python's."""

    def __init__(
        self, *arguments: object, state: Path | None = None, program: tuple[str, ...] = ("-m", "penstock")
    ):
        self.process_id, self.terminal = pty.fork()
        if self.process_id == 0:
            os.environ.update(ENVIRONMENT, XDG_STATE_HOME=str(state or "/nowhere"))
            # A shell's background jobs inherit that it is ignored.
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.execv(sys.executable, [sys.executable, *program, *map(str, arguments)])
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
                assert self.status(seconds=6) == 130
                return
        raise AssertionError("no interrupt ended the program")

    def close(self) -> None:
        if self.process_id:
            os.kill(self.process_id, signal.SIGKILL)
            os.waitpid(self.process_id, 0)
        os.close(self.terminal)
