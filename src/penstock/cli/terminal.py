"""What commands write for people: answers as they come (reasoning dim, an empty line, then what is said), notes
beside them, and a line that says how far the reading of a prompt is."""

import os
import sys
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final, TextIO

from penstock.chat.events import Event, ReasoningDelta, TextDelta

if TYPE_CHECKING:
    from penstock.engine.progress import PrefillProgress

STYLES: Final = {"dim": "\x1b[2m", "red": "\x1b[31m"}
PLAIN: Final = "\x1b[0m"
ERASE: Final = "\r\x1b[K"  # the line that the cursor is in
EVERY: Final = 0.1  # seconds between two states of the line


def printable(text: str) -> str:
    """Text that cannot steer the terminal: control characters other than line feeds and tabs are replaced."""
    return "".join(c if (c >= " " and not "\x7f" <= c <= "\x9f") or c in "\n\t" else "\ufffd" for c in text)


class Output:
    """A stream for people, or for whatever it was redirected to."""

    def __init__(self, stream: TextIO):
        self.stream = stream
        self.is_terminal = stream.isatty()
        self.is_screen = self.is_terminal and os.environ.get("TERM") != "dumb"  # lines can be written over
        self._coloured = self.is_screen and not os.environ.get("NO_COLOR")

    def write(self, text: str, style: str = "") -> None:
        """Shows text at once."""
        shown = printable(text)
        self.stream.write(f"{STYLES[style]}{shown}{PLAIN}" if style and self._coloured and text else shown)
        self.stream.flush()

    def note(self, text: str, style: str = "dim") -> None:
        """A line that the program says, not the model."""
        self.write(text, style)
        self.write("\n")


class Display:
    """Writes events as they come.  Where answers are redirected, only they are in the file: the reasoning still shows
    on the terminal."""

    def __init__(self, answer: Output, notes: Output):
        self.answer, self.reasoning = answer, answer if answer.is_terminal else notes
        self._reasoned = False
        self._open = False  # a line of the answer has no end yet

    def show(self, events: Iterable[Event]) -> None:
        for event in events:
            match event:
                case ReasoningDelta(text):
                    self.reasoning.write(text, "dim")
                    self._reasoned = True
                case TextDelta(text) if text:
                    self._end_reasoning("\n\n")
                    self.answer.write(text)
                    self._open = not text.endswith("\n")
                case _:
                    pass

    def finish(self) -> None:
        self._end_reasoning("\n")
        if self._open:
            self.answer.write("\n")

    def _end_reasoning(self, space: str) -> None:
        if self._reasoned:
            self.reasoning.write(space)
            self._reasoned = False


class PrefillLine:
    """How far a prompt is read, in one line that is written over and over, on a terminal only."""

    def __init__(self, output: Output, clock: Callable[[], float] = time.monotonic):
        self._output, self._clock = output, clock
        self._shown: float | None = None  # when

    def __call__(self, progress: "PrefillProgress") -> None:
        now = self._clock()
        if self._output.is_screen and (self._shown is None or now - self._shown >= EVERY):
            self._shown = now
            self._output.stream.write(ERASE)
            self._output.write(f"reading {progress}"[: _columns(self._output.stream) - 1], "dim")

    def erase(self) -> None:
        """The answer begins here."""
        if self._shown is not None:
            self._output.stream.write(ERASE)
            self._output.stream.flush()
            self._shown = None


def _columns(stream: TextIO) -> int:
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80
    except OSError:
        return 80


def outputs() -> tuple[Output, Output]:
    """Where answers go, and where everything else does."""
    return Output(sys.stdout), Output(sys.stderr)
