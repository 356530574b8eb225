"""How an answer appears: reasoning dim, an empty line, then what is said."""

from collections.abc import Iterable

from rich.console import Console
from rich.text import Text

from penstock.chat.events import Event, ReasoningDelta, TextDelta


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
