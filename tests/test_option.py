"""How options are written on a command line and what they become."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import OptionError
from penstock.option import check, file, make, option, options_of, size, switch, text, texts, whole


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    count: int | None = option(None, whole(1, 9), "How many.", unset="all")
    room: int | str | None = option(None, size("auto"), "Memory.", unset="any", command_default="auto")
    space: int = option(64 << 20, size(), "Disk.")
    place: Path | str | None = option("auto", file("auto"), "Where.", unset="nowhere")
    names: tuple[str, ...] = option((), texts(), "Who.", flags=("--name",))
    title: str = option("x", text(), "Called.", secret=True)
    loud: bool = option(False, switch(), "Loudly.")

    def __post_init__(self) -> None:
        check(self)


@pytest.mark.parametrize(
    ("name", "given", "value"),
    [
        ("count", None, None),
        ("room", "auto", "auto"),
        ("room", "none", None),
        ("room", "1KiB", 1024),
        ("space", "64MiB", 64 << 20),
        ("place", "none", None),
        ("place", "auto", "auto"),
        ("place", "x", Path("x")),
        ("names", None, ()),
        ("names", ["a", "b"], ("a", "b")),
    ],
)
def test_what_a_command_line_says_and_what_it_means(name: str, given: Any, value: Any) -> None:
    found = options_of(Chosen)[name]
    assert found.check(found.parse(given)) == value


def test_defaults_are_written_as_a_person_would() -> None:
    found = options_of(Chosen)
    written = {name: option.kind.write(option.command_default) for name, option in found.items()}
    assert written["space"] == "64MiB"
    assert written["room"] == "auto"
    assert (found["names"].flag, found["loud"].flag) == ("--name", "--loud")
    assert found["room"].metavar == "SIZE|auto|none"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"count": 10}, "count is 10, expected a whole number from 1 to 9 or None"),
        ({"count": True}, "count is True, expected"),
        ({"space": None}, "space is None, expected bytes, an amount such as '8GiB'"),
        ({"names": "ab"}, "names is 'ab', expected a sequence of non-empty strings"),
        ({"title": ""}, "title: expected text"),
        ({"loud": 1}, "loud is 1, expected True or False"),
        ({"cuont": 1}, "there is no option 'cuont'; did you mean 'count'?"),
    ],
)
def test_what_does_not_fit_is_said(given: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError) as caught:
        make(Chosen, given)
    assert str(caught.value).startswith(message)
