"""Options that are declared once.  A field of a dataclass says what it takes, its default and what it is for; checks,
flags of commands, `/props` and the tables of `docs/options.md` are derived from that.

    @dataclass(frozen=True, slots=True, kw_only=True)
    class EngineOptions:
        threads: int | None = option(None, whole(1), "CPU threads.", unset="every core")

        def __post_init__(self) -> None:
            check(self)
"""

import difflib
import inspect
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from penstock.errors import OptionError
from penstock.sizes import parse_size, write_size

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
KEY: Final = "option"  # where the metadata of a field has its `Option`
MOST: Final = 1 << 31
NONE: Final = "none"  # how None is written on a command line, where leaving a flag out means something else


# ── what an option takes ──────────────────────────────────────────────────────────────────────────────────────────


class Kind(NamedTuple):
    """`expected` ends the error about a value that does not fit.  `check` gives a value as it is kept, or raises
    ValueError.  `type` is what a command line reads and `metavar` how its help calls that; `parse` makes a value of
    it, naming the flag if it cannot, and `write` is the way back."""

    expected: str
    check: Callable[[Any], Any]
    type: Any = str
    metavar: str | None = None
    parse: Callable[[Any, str], Any] = lambda given, _: given
    write: Callable[[Any], Any] = lambda value: value


def _kept_if(good: Callable[[Any], bool]) -> Callable[[Any], Any]:
    def check(value: Any) -> Any:
        if not good(value):
            raise ValueError
        return value

    return check


def whole(low: float, high: float = MOST, expected: str = "") -> Kind:
    """A whole number."""
    until = "" if high == MOST else f" to {high:,}"
    check = _kept_if(lambda value: type(value) is int and low <= value <= high)
    return Kind(expected or f"a whole number from {low}{until}", check, int)


def number(low: float, high: float = math.inf, expected: str = "a number") -> Kind:
    """A finite number."""

    def good(value: Any) -> bool:
        real = isinstance(value, int | float) and not isinstance(value, bool)
        return real and low <= value <= high and math.isfinite(value)

    return Kind(expected, _kept_if(good), float)


def seconds() -> Kind:
    return number(0, expected="a number of seconds")


def choice(*values: str, also: str = "") -> Kind:
    """One of a few words.  With a pattern `also`, the last stands for all that it matches, as cuda:N does."""
    words = values[:-1] if also else values

    def good(value: Any) -> bool:
        return isinstance(value, str) and (value in words or bool(also and re.fullmatch(also, value)))

    return Kind(f"one of {', '.join(values)}", _kept_if(good), metavar="|".join(values))


def size(*words: str) -> Kind:
    """An amount of memory or disk in bytes or as text such as "8GiB", or one of these words."""

    def check(value: Any) -> Any:
        if isinstance(value, str):
            return value if value in words else parse_size(value, "")
        if not (type(value) is int and value > 0):
            raise ValueError
        return value

    return Kind(
        f"bytes, an amount such as '8GiB'{''.join(f', {word!r}' for word in words)}",
        check,
        metavar="|".join(("SIZE", *words)),
        parse=lambda given, flag: given if given in words else parse_size(given, flag),
        write=lambda value: write_size(value) if isinstance(value, int) else value,
    )


def file(*words: str, what: str = "the path of a file") -> Kind:
    """A path, or one of these words."""

    def check(value: Any) -> Any:
        if not isinstance(value, str | Path):
            raise ValueError
        return value if value in words else Path(value)

    expected = f"{''.join(f'{word!r}, ' for word in words)}{what}"
    return Kind(expected, check, metavar="|".join(("PATH", *words)))


def switch() -> Kind:
    return Kind("True or False", _kept_if(lambda value: type(value) is bool), bool)


def text() -> Kind:
    return Kind("text", _kept_if(lambda value: isinstance(value, str) and bool(value)))


def texts(expected: str = "a sequence of non-empty strings") -> Kind:
    """A flag that may be repeated."""

    def good(value: Any) -> bool:
        return not isinstance(value, str) and all(isinstance(item, str) and item for item in value)

    return Kind(
        expected,
        _kept_if(good),
        list[str] | None,
        parse=lambda given, _: tuple(given or ()),
        write=lambda value: list(value) or None,
    )


# ── options ───────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Option:
    """What one field declares.

    unset            what None stands for; without it, None is no value of the option
    commands         which commands have the flag
    command_default  what they take if it is not given; where that is not None, "none" is how None is written
    flags            its names there, if they do not follow from the field's
    group            under which heading help and tables show it
    secret           never shown, neither in an error nor in `/props`
    effective        what an engine, or another owner of the options, really uses; without it, the value itself
    """

    kind: Kind
    help: str
    unset: str = ""
    commands: tuple[str, ...] = ()
    command_default: Any = ...  # the field's own
    flags: tuple[str, ...] = ()
    group: str = ""
    secret: bool = False
    effective: Callable[[Any], Any] | None = None
    name: str = ""  # the field's, as its default is
    default: Any = None

    @property
    def flag(self) -> str:
        return self.flags[0]

    @property
    def written_none(self) -> bool:
        return bool(self.unset) and self.command_default is not None

    @property
    def metavar(self) -> str | None:
        return f"{self.kind.metavar}|{NONE}" if self.written_none and self.kind.metavar else self.kind.metavar

    def parse(self, given: Any) -> Any:
        """The value that was given on a command line, as it is kept; an error names the flag."""
        if (given is None and self.unset) or (given == NONE and self.written_none):
            return None
        return self._kept(self.kind.parse(given, self.flag), self.flag, NONE if self.written_none else "")

    def check(self, value: Any) -> Any:
        """The value as it is kept.  Raises OptionError for one that the option does not take."""
        if value is None and self.unset:
            return None
        return self._kept(value, self.name, "None" if self.unset else "")

    def _kept(self, value: Any, name: str, none: str) -> Any:
        try:
            return self.kind.check(value)
        except (ValueError, TypeError):
            found = ":" if self.secret else f" is {value!r},"
            expected = f"{self.kind.expected} or {none}" if none else self.kind.expected
            raise OptionError(f"{name}{found} expected {expected}") from None


def option(default: Any, kind: Kind, help: str, **declared: Any) -> Any:
    """A field of a dataclass of options; `declared` is what else an `Option` has."""
    made = Option(kind, help, **declared)
    return field(default=default, metadata={KEY: made}, repr=not made.secret)


def options_of(declaring: Any) -> Mapping[str, Option]:
    """The options that a dataclass, or an instance of one, declares, by name and in order."""
    return _declared(declaring if isinstance(declaring, type) else type(declaring))


@cache
def _declared(declaring: Any) -> Mapping[str, Option]:
    found = {}
    for item in fields(declaring):
        if KEY in item.metadata:
            made: Option = item.metadata[KEY]
            found[item.name] = replace(
                made,
                name=item.name,
                default=item.default,
                flags=made.flags or (f"--{item.name.replace('_', '-')}",),
                command_default=item.default if made.command_default is ... else made.command_default,
            )
    return found


def check(options: Any) -> None:
    """For `__post_init__`: every option takes its value, or OptionError says which does not and what was expected."""
    for name, declared in options_of(options).items():
        object.__setattr__(options, name, declared.check(getattr(options, name)))


def make(declaring: type[T], given: Mapping[str, Any]) -> T:
    """An instance of a dataclass of options.  A name that it does not have is an error that names the closest one."""
    known = [item.name for item in fields(declaring)]  # type: ignore[arg-type]
    for name in given:
        if name not in known:
            close = difflib.get_close_matches(name, known, 1)
            hint = f"; did you mean {close[0]!r}?" if close else f"; there are {', '.join(known)}"
            raise OptionError(f"there is no option {name!r}{hint}")
    return declaring(**given)


def given(options: Any) -> dict[str, Any]:
    """The values of an instance by name, as `make` takes them."""
    return {item.name: getattr(options, item.name) for item in fields(options)}


def effective(options: Any, owner: Any = None) -> dict[str, Any]:
    """What is really used, in words and numbers that JSON has; `owner` is what was made with these options."""
    found = {}
    for name, declared in options_of(options).items():
        if not declared.secret:
            used = getattr(options, name) if declared.effective is None else declared.effective(owner)
            found[name] = str(used) if isinstance(used, Path) else used
    return found


def takes(declaring: Any) -> Callable[[F], F]:
    """Decorates a function whose `**` are the options of a dataclass, so that `help` and editors list them."""

    def decorate(function: F) -> F:
        own = inspect.signature(function)
        listed = [
            inspect.Parameter(
                item.name, inspect.Parameter.KEYWORD_ONLY, default=item.default, annotation=item.type
            )
            for item in fields(declaring)
        ]
        kept = [p for p in own.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
        function.__signature__ = own.replace(parameters=[*kept, *listed])  # type: ignore[attr-defined]
        return function

    return decorate
