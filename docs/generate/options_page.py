"""docs/options.md, made from the declarations of options."""

from collections.abc import Iterator
from typing import Any

from penstock.engine.options import EngineOptions
from penstock.engine.sampling import Sampling
from penstock.environment import VARIABLES
from penstock.option import Option, options_of
from penstock.server.http.settings import Settings

SECTIONS = (
    (
        "Engine",
        EngineOptions,
        "Keywords of `penstock.Engine(path, …)`, fields of `penstock.EngineOptions`, flags of the commands named;\n"
        "`/props` shows what is really used under `penstock.options`.",
    ),
    ("Sampling", Sampling, "Fields of `penstock.Sampling`, and flags of `run` and `chat`."),
    (
        "Server",
        Settings,
        "Flags of `serve`; `/props` shows them under `penstock.settings`, but never a key.",
    ),
)


def page() -> str:
    """The whole page."""
    return "\n".join(_lines())


def _lines() -> Iterator[str]:
    yield "# Options\n"
    yield "Made by `make docs` from the declarations in the code; not to be edited by hand.\n"
    for title, declaring, about in SECTIONS:
        yield f"## {title}\n\n{about}\n"
        yield "| name | flag | takes | default | |"
        yield "|---|---|---|---|---|"
        for option in options_of(declaring).values():
            yield _row(option)
        yield ""
    yield "## Environment\n\nA value that cannot be is an error.\n"
    yield "| variable | takes | |"
    yield "|---|---|---|"
    for variable in VARIABLES:
        yield f"| `{variable.name}` | {', '.join(variable.values) or 'text'} | {variable.help} |"
    yield ""


def _row(option: Option) -> str:
    flags = " ".join(f"`{flag}`" for flag in option.flags)
    default = _written(option, option.default)
    if option.commands and option.command_default != option.default:
        default += f"; {_written(option, option.command_default)} in commands"
    none = f" None: {option.unset}." if option.unset and option.default is not None else ""
    cells = (
        f"`{option.name}`",
        f"{flags}: {', '.join(option.commands)}" if option.commands else "",
        option.kind.expected.removeprefix("one of "),
        default,
        option.help.replace("  ", " ") + none,
    )
    return f"| {' | '.join(cells)} |"


def _written(option: Option, value: Any) -> str:
    if value is None or value == ():
        return f"None: {option.unset}" if option.unset else "none"
    return f"`{option.kind.write(value)}`"
