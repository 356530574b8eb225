"""Holds a command line against the program that it names: does it know these commands, flags and files?

Nothing is run, so this also works for what needs a GPU or a week.
"""

import re
import shlex
from functools import cache
from typing import Any, Final

from penstock.cli.main import COMMANDS, load
from tests.docs.pages import ROOT

PROGRAMS: Final = ("penstock", "python", "python3", "make", "pytest")
_ASSIGNMENT: Final = re.compile(r"\w+=\S*")
_PLACEHOLDER: Final = re.compile(r"[A-Z]+")  # `penstock CMD`: a word for the reader to replace


def complaint(line: str) -> str | None:
    """What is wrong with a command line, as far as it can be known; None where nothing is."""
    for words in _simple_commands(line):
        while words and _ASSIGNMENT.fullmatch(words[0]):
            words = words[1:]
        if not words:
            continue
        program, arguments = words[0].rsplit("/", 1)[-1], words[1:]
        match program:
            case "penstock":
                found = _penstock(arguments)
            case "python" | "python3":
                found = _python(arguments)
            case "make":
                found = _make(arguments)
            case "pytest":
                found = _missing_files(arguments)
            case _:
                found = None
        if found:
            return f"{shlex.join(words)}: {found}"
    return None


def _simple_commands(line: str) -> list[list[str]]:
    """The commands of a line that pipes, `&&`, `;` and `&` put together."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>()")
    lexer.whitespace_split = True
    lexer.commenters = "#"
    commands: list[list[str]] = [[]]
    for word in lexer:
        if set(word) <= set("|&;()"):
            commands.append([])
        elif set(word) <= set("<>&"):  # `2> FILE` is none of the program's business
            next(lexer, None)
            if commands[-1] and commands[-1][-1] in "012":
                commands[-1].pop()
        else:
            commands[-1].append(word)
    return commands


def _penstock(arguments: list[str]) -> str | None:
    if not arguments or arguments[0] in ("--help", "-h", "--version") or _PLACEHOLDER.fullmatch(arguments[0]):
        return None
    if arguments[0] not in COMMANDS:
        return f"there is no command {arguments[0]!r}"
    command, rest = load(arguments[0]), arguments[1:]
    while hasattr(command, "commands"):
        if not rest or rest[0].startswith("-"):
            return None
        if rest[0] not in command.commands:
            return f"there is no command {rest[0]!r}"
        command, rest = command.commands[rest[0]], rest[1:]
    return _parse(command, rest)


def _parse(command: Any, arguments: list[str]) -> str | None:
    try:
        command.make_context(command.name, list(arguments))
    except Exception as error:
        # What is left out, or stands for something, is the reader's to say; what is there has to be right.
        kind, stands = type(error).__name__, any(_PLACEHOLDER.fullmatch(word) for word in arguments)
        if kind in ("MissingParameter", "Exit") or (kind == "BadParameter" and stands):
            return None
        return _said(error)
    return None


def _said(error: Exception) -> str:
    return error.format_message() if hasattr(error, "format_message") else str(error)


def _python(arguments: list[str]) -> str | None:
    if arguments[:1] == ["-m"] and len(arguments) > 1:
        name, rest = arguments[1], arguments[2:]
        first, last = name.split(".")[0], name.rsplit(".", 1)[-1]
        if first not in ("benchmarks", "docs", "pocket", "tests") or _PLACEHOLDER.fullmatch(last):
            return None
        source = ROOT.joinpath(*name.split("."))
        file = source / "__main__.py" if source.is_dir() else source.with_suffix(".py")
    elif arguments and arguments[0].endswith(".py"):
        file, rest = ROOT / arguments[0], arguments[1:]
    else:
        return None
    if not file.exists():
        return f"there is no {file.relative_to(ROOT)}"
    known = set(re.findall(r'"(--[a-z][a-z-]*)"', file.read_text(encoding="utf-8")))
    unknown = [
        word for word in rest if word.startswith("--") and word.split("=")[0] not in {*known, "--help"}
    ]
    return f"{file.relative_to(ROOT)} knows no {unknown[0]}" if unknown else None


def _make(arguments: list[str]) -> str | None:
    for word in arguments:
        if not word.startswith("-") and "=" not in word and word not in _targets():
            return f"there is no target {word!r}"
    return None


@cache
def _targets() -> frozenset[str]:
    return frozenset(re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def _missing_files(arguments: list[str]) -> str | None:
    files = [word.split("::")[0] for word in arguments if word.startswith("tests/")]
    missing = [file for file in files if not (ROOT / file).exists()]
    return f"there is no {missing[0]}" if missing else None
