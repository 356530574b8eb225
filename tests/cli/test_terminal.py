"""What a person types becomes messages, and what they see while they wait."""

import io
from collections.abc import Callable
from typing import Any

import pytest

from penstock.chat.events import Done, ReasoningDelta, TextDelta
from penstock.cli.answer_stats import AnswerStats
from penstock.cli.line_editor import read_message
from penstock.cli.terminal import Display, Output, PrefillLine
from penstock.engine.progress import PrefillProgress


def typed(*lines: str) -> Callable[[str], str]:
    waiting = iter(lines)

    def ask(_: str) -> str:
        try:
            return next(waiting)
        except StopIteration:
            raise EOFError from None

    return ask


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["hi", "x"], "hi"),
        (["one\\", "two\\", "three"], "one\ntwo\nthree"),
        (['"""one', "", "two", '"""', "x"], "one\n\ntwo"),
        (['"""one"""', "x"], "one"),
        (["pasted\nlines"], "pasted\nlines"),
        ([""], ""),
    ],
)
def test_messages(lines: list[str], message: str) -> None:
    assert read_message(typed(*lines), lambda: False) == message


def test_lines_that_arrive_together_are_one_message() -> None:
    more = iter([True, True, False])
    assert read_message(typed("a", "", "b", "c"), lambda: next(more)) == "a\n\nb"


def test_a_command_stands_alone() -> None:
    assert read_message(typed("/think on", "hi"), lambda: True) == "/think on"


def test_the_end_of_input() -> None:
    with pytest.raises(EOFError):
        read_message(typed(), lambda: False)


class Screen(io.StringIO):
    """A terminal that remembers everything."""

    def __init__(self, terminal: bool = True):
        super().__init__()
        self.terminal = terminal

    def isatty(self) -> bool:
        return self.terminal


@pytest.fixture
def colours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)


@pytest.mark.usefixtures("colours")
def test_progress_is_one_line_that_is_written_over() -> None:
    screen, times = Screen(), iter([0.0, 0.05, 0.2])
    line = PrefillLine(Output(screen), clock=lambda: next(times))
    for done, seconds in ((0, 0.0), (500, 0.05), (1000, 10.0)):  # the second one comes too soon to be read
        line(PrefillProgress(done, 3000, 0, seconds=seconds))
    line.erase()
    line.erase()
    shown = ["reading 0 of 3,000 tokens", "reading 1,000 of 3,000 tokens, 100 tokens/s, 0:20 left"]
    assert screen.getvalue() == "".join(f"\r\x1b[K\x1b[2m{text}\x1b[0m" for text in shown) + "\r\x1b[K"


def test_progress_is_for_terminals(monkeypatch: pytest.MonkeyPatch) -> None:
    for terminal, kind in ((False, "xterm"), (True, "dumb")):
        monkeypatch.setenv("TERM", kind)
        screen = Screen(terminal)
        line = PrefillLine(Output(screen))
        line(PrefillProgress(1, 2, 0))
        line.erase()
        assert screen.getvalue() == ""


@pytest.mark.usefixtures("colours")
def test_reasoning_is_not_in_a_file_of_answers() -> None:
    file, terminal = Screen(terminal=False), Screen()
    display = Display(Output(file), Output(terminal))
    display.show([ReasoningDelta("Hm"), TextDelta(""), TextDelta("Yes"), TextDelta("."), Done("stop")])
    display.finish()
    assert file.getvalue() == "Yes.\n"
    assert terminal.getvalue() == "\x1b[2mHm\x1b[0m\n\n"


def test_an_answer_ends_its_last_line_once() -> None:
    for text, expected in (("a", "a\n"), ("a\n", "a\n"), ("", "")):
        screen = Screen(terminal=False)
        display = Display(Output(screen), Output(screen))
        display.show([TextDelta(text)])
        display.finish()
        assert screen.getvalue() == expected


# ── how fast it was ───────────────────────────────────────────────────────────────────────────────────────────────


class Storage:
    """What `AnswerStats` asks of an engine."""

    def __init__(self, *states: dict[str, Any]):
        self._states = iter(states)

    def stats(self) -> dict[str, Any]:
        return next(self._states)


BEFORE = {"mode": "direct", "hits": 10, "misses": 10, "disk_bytes": 5}
AFTER = {
    "mode": "direct",
    "hits": 100,
    "misses": 20,
    "disk_bytes": 5 + 3e9,
    "read_seconds": 1.5,
    "stall_seconds": 1.0,
    "dense_stall_seconds": 0.5,
    "evictions": 4,
}


def answered(times: list[float], read: int, *after: dict[str, Any]) -> AnswerStats:
    """An answer with a token at each of these times after the first, when it was asked for."""
    clock = iter(times)
    stats = AnswerStats(Storage(BEFORE, *after), clock=lambda: next(clock))  # type: ignore[arg-type]
    stats.read = read
    for _ in times[1:]:
        stats.token()
    return stats


def test_the_line_of_an_answer() -> None:
    assert answered([100.0, 104.0, 104.5, 105.0], 1000, AFTER).line() == (
        "first token after 4.0 s · prefill 1,000 tokens at 250/s · decode 2 tokens at 2.00/s · "
        "experts 90% in memory · 3.00 GB read · 30% waiting for the disk"
    )
    assert answered([100.0, 104.0, 104.5], 0, AFTER, AFTER).details() == (
        "100 experts asked for · disk 2.0 GB/s · waited 1.50 of 4.50 s · ahead 0 used, 0 not · evicted 4"
    )
    short = answered([100.0, 104.0], 1, {"mode": "mmap"}).line()
    assert short == "first token after 4.0 s · prefill 1 token at 0.25/s · decode 0 tokens"


@pytest.mark.parametrize(
    ("seconds", "terminal", "asked", "lines"),
    [(4.9, True, False, 0), (5.0, True, False, 1), (5.0, False, False, 0), (0.1, False, True, 2)],
)
def test_long_answers_say_how_fast_they_were(seconds: float, terminal: bool, asked: bool, lines: int) -> None:
    screen = Screen(terminal)
    answered([0.0, seconds], 3, AFTER, AFTER).show(Output(screen), asked)
    assert screen.getvalue().count("\n") == lines
