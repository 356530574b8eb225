"""What a person types becomes messages."""

from collections.abc import Callable

import pytest

from penstock.cli.line_editor import read_message


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
