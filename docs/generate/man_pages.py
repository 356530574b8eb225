"""docs/man, made from the help texts of the commands: a page for `penstock` and one for each command."""

import re
from collections.abc import Iterator
from itertools import groupby
from textwrap import wrap
from typing import Any, Final

import typer

import penstock
from penstock.cli.main import COMMANDS, app, load
from penstock.environment import VARIABLES

DESCRIPTION: Final = (
    "A penstock is the pipe that carries water from the reservoir to the turbine.  This one carries the weights of a "
    "284-billion-parameter model from disk to whatever can compute: it opens the checkpoints that already circulate, "
    "keeps them where they are, and computes exactly what the model defines.  Commands that need a model use the "
    "small one that comes with the package when none is named."
)
STATUS: Final = {
    "0": "It went well, or whoever read the output wanted no more.",
    "1": "It failed, for the reason on standard error.",
    "2": "The command line is wrong.",
    "130": "It was interrupted.",
}
_FIRST: Final = {"Arguments": 0, "Options": 1}  # of the panels


def pages() -> dict[str, str]:
    """Every page by the name of its file."""
    found = {"penstock.1": _written(_main())}
    for name, about in COMMANDS.items():
        found[f"penstock-{name}.1"] = _written(_command(name, about))
    return found


def _written(lines: Iterator[str]) -> str:
    return "\n".join(lines) + "\n"


def _main() -> Iterator[str]:
    yield from _head("penstock", "DeepSeek-V4 on the machine you have")
    yield from [".SH SYNOPSIS", ".B penstock", _italic("COMMAND"), "[OPTIONS] [ARGUMENTS]"]
    yield from [".SH DESCRIPTION", *_text(DESCRIPTION)]
    yield ".SH COMMANDS"
    for name, about in COMMANDS.items():
        yield from [".TP", rf"\fBpenstock\-{_escaped(name)}\fR(1)", *_text(about)]
    yield from _options(typer.main.get_command(app))
    yield ".SH ENVIRONMENT"
    for variable in VARIABLES:
        among = f"  One of {', '.join(variable.values)}." if variable.values else ""
        yield from [".TP", rf"\fB{_escaped(variable.name)}\fR", *_text(variable.help + among)]
    yield from _status()
    yield from [
        ".SH SEE ALSO",
        ",\n".join(rf"\fBpenstock\-{_escaped(name)}\fR(1)" for name in sorted(COMMANDS)),
    ]


def _command(name: str, about: str) -> Iterator[str]:
    command = load(name)
    summary = about.split(".  ")[0].rstrip(".")
    yield from _head(f"penstock-{name}", summary[0].lower() + summary[1:])
    parts = getattr(command, "commands", None) or {"": command}
    yield ".SH SYNOPSIS"
    for number, (part, found) in enumerate(parts.items()):
        yield from [".br"] if number else []
        yield rf"\fBpenstock {_escaped(f'{name} {part}'.strip())}\fR {_usage(found)}"
    yield from [".SH DESCRIPTION", *_text(about)]
    for part, found in parts.items():
        if part:
            yield from [f".SH PENSTOCK {_escaped(f'{name} {part}'.upper())}", *_text(_help(found)[0])]
        else:
            for paragraph in _help(found)[1:]:
                yield from [".PP", *_text(paragraph)]
        yield from _options(found, ".SS" if part else ".SH")
    examples = [example for found in parts.values() for example in _examples(found)]
    if examples:
        yield ".SH EXAMPLES"
        for number, example in enumerate(examples):
            yield from [*([".PP"] if number else []), ".EX", _escaped(example), ".EE"]
    yield from _status()
    yield from [".SH SEE ALSO", r"\fBpenstock\fR(1)"]


def _head(name: str, summary: str) -> Iterator[str]:
    yield r".\" Made by `make docs` from the help texts; not to be edited by hand."
    yield f'.TH {_escaped(name.upper())} 1 "" "penstock {penstock.__version__}" "User Commands"'
    yield from [".SH NAME", rf"{_escaped(name)} \- {_escaped(summary)}"]


def _options(command: Any, level: str = ".SH") -> Iterator[str]:
    """Arguments and options, by the panels that help shows."""
    context = command.make_context(command.name, [], resilient_parsing=True)
    records = [
        (_panel(parameter), *record)
        for parameter in command.params
        if (record := parameter.get_help_record(context))
    ]
    for panel, group in groupby(sorted(records, key=lambda record: _FIRST.get(record[0], 2)), lambda r: r[0]):
        yield f"{level} {_escaped(panel.upper() if level == '.SH' else panel)}"
        for _, written, about in group:
            yield from [".TP", _flags(written), *_text(about)]


def _panel(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return "Arguments"
    found: str | None = getattr(parameter, "rich_help_panel", None)
    return "Options" if found is None else f"{found} options"


def _flags(written: str) -> str:
    r"""-m, --model <path>  →  \fB-m\fR, \fB--model\fR \fI<path>\fR"""
    words = re.split(r"([ ,/]+)", written)
    return "".join(
        rf"\fB{_escaped(word)}\fR"
        if word.startswith("-")
        else rf"\fI{_escaped(word)}\fR"
        if at % 2 == 0
        else word
        for at, word in enumerate(words)
        if word
    )


def _usage(command: Any) -> str:
    context = command.make_context(command.name, [], resilient_parsing=True)
    pieces = " ".join(piece.split(":")[0] for piece in command.collect_usage_pieces(context))
    return _escaped(re.sub(r"\{(\w+)\}", lambda match: match[1].upper(), pieces))


def _help(command: Any) -> list[str]:
    """The paragraphs of a command's help, without examples."""
    return [part for part in (command.help or "").split("\n\n") if not part.startswith("Example")]


def _examples(command: Any) -> list[str]:
    return re.findall(r"^Example: (.*)", command.help or "", re.MULTILINE)


def _status() -> Iterator[str]:
    yield ".SH EXIT STATUS"
    for code, about in STATUS.items():
        yield from [".TP", rf"\fB{code}\fR", *_text(about)]


def _text(text: str) -> list[str]:
    """Short lines, and a new one for each sentence, as roff wants it."""
    sentences = re.split(r"(?<=[.!?])\s+(?=[A-Z(\[])", " ".join(text.split()))
    return [_escaped(line) for sentence in sentences for line in wrap(sentence, 72, break_on_hyphens=False)]


def _italic(text: str) -> str:
    return rf"\fI{_escaped(text)}\fR"


def _escaped(text: str) -> str:
    r"""Text that roff takes for text.

    >>> _escaped(".x-\\y")
    '\\&.x\\-\\ey'
    """
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{text}" if text.startswith((".", "'")) else text
