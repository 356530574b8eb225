"""How a command reads its arguments and shows its help: plainly, in the words that people know from other tools, and
without loading what draws tables."""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, Final

import typer
from typer.core import TyperCommand

from penstock.chat.messages import THINKING_WORDS

PLAIN: Final[dict[str, Any]] = {  # for every `typer.Typer` of ours
    "rich_markup_mode": None,
    "pretty_exceptions_enable": False,
    "context_settings": {"help_option_names": ["-h", "--help"], "max_content_width": 110},
}
METAVARS: Final = {"integer": "N", "int": "N", "float": "X", "path": "PATH", "text": "TEXT", "str": "TEXT"}
# What typer raises for a wrong command line, under a name that it hides.
WrongUse: Any = typer.BadParameter.__base__
THINK: Final = "--think"
OWN: Final = "Options"  # the section of what belongs to no other


class Command(TyperCommand):
    def __init__(self, *arguments: Any, **attributes: Any):
        super().__init__(*arguments, **attributes)
        for parameter in self.params:
            _name_value(parameter)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        options = [each for each in self.params if each.param_type_name == "option"]
        for parameter in options:
            if parameter.type.name == "path" and _is_empty(parameter.opts, args):
                ctx.fail(f"{parameter.opts[0]} is empty, expected a path")  # as an unset variable leaves it
        if any(THINK in parameter.opts for parameter in options):
            args = with_effort(args, takes_text=len(options) < len(self.params))
        try:
            return super().parse_args(ctx, args)
        except WrongUse as error:
            error.ctx = error.ctx or ctx
            raise

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """In sections: arguments, options, and the groups that options belong to."""
        sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], OWN: []}
        for parameter in self.get_params(ctx):
            found = parameter.get_help_record(ctx)
            if found is not None:
                group = "Arguments" if parameter.param_type_name == "argument" else _group(parameter)
                names, help = found
                sections.setdefault(group, []).append((names, help.replace("  [", " [")))
        for title, rows in sections.items():
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)


def _group(parameter: Any) -> str:
    return getattr(parameter, "rich_help_panel", None) or OWN


def _name_value(parameter: Any) -> None:
    """N for a number, PATH for a file; arguments by their own names."""
    if parameter.metavar is not None:
        return
    if parameter.param_type_name == "argument":
        parameter.metavar = parameter.name.upper() + ("..." if parameter.nargs == -1 else "")
        if not parameter.required:
            parameter.metavar = f"[{parameter.metavar}]"
    elif choices := getattr(parameter.type, "choices", None):
        parameter.metavar = "|".join(_words(choices))
    elif not parameter.is_flag:
        parameter.metavar = METAVARS.get(parameter.type.name.removesuffix(" range"))


def _words(choices: Iterable[Any]) -> list[str]:
    return [str(getattr(choice, "value", choice)) for choice in choices]


def _is_empty(flags: Sequence[str], args: Sequence[str]) -> bool:
    apart = any(flag in flags and value == "" for flag, value in pairwise(args))
    return apart or any(f"{flag}=" in args for flag in flags)


def with_effort(args: Sequence[str], takes_text: bool = True) -> list[str]:
    """`--think` may stand alone.  What follows it is its word only if it is one, at least where it could as well be
    what the command takes besides flags.

    >>> with_effort(["--think", "high", "Why?"]), with_effort(["--think", "Why?"])
    (['--think', 'high', 'Why?'], ['--think=on', 'Why?'])
    """
    end = args.index("--") if "--" in args else len(args)

    def alone(at: int) -> bool:
        following = args[at + 1] if at + 1 < end else "-"
        return following.startswith("-") or (takes_text and following not in THINKING_WORDS)

    return [
        f"{THINK}=on" if word == THINK and at < end and alone(at) else word for at, word in enumerate(args)
    ]
