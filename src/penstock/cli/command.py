"""How a command reads its arguments and shows its help: plainly, in the words that people know from other tools, and
without loading what draws tables."""

from collections.abc import Iterable, Sequence
from typing import Any, Final

from typer.core import TyperCommand

from penstock.chat.messages import THINKING_WORDS

PLAIN: Final[dict[str, Any]] = {  # for every `typer.Typer` of ours
    "rich_markup_mode": None,
    "pretty_exceptions_enable": False,
    "context_settings": {"help_option_names": ["-h", "--help"], "max_content_width": 110},
}
METAVARS: Final = {"integer": "N", "float": "X", "path": "PATH", "text": "TEXT", "int": "N", "str": "TEXT"}
THINK: Final = "--think"
OWN: Final = "Options"  # the section of what belongs to no other


class Command(TyperCommand):
    def __init__(self, *arguments: Any, **attributes: Any):
        super().__init__(*arguments, **attributes)
        for parameter in self.params:
            _name_value(parameter)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if any(THINK in parameter.opts for parameter in self.params):
            args = with_effort(args)
        return super().parse_args(ctx, args)

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
        parameter.metavar = METAVARS.get(parameter.type.name)


def _words(choices: Iterable[Any]) -> list[str]:
    return [str(getattr(choice, "value", choice)) for choice in choices]


def with_effort(args: Sequence[str]) -> list[str]:
    """`--think` may stand alone: what follows it is its word only if it is one.

    >>> with_effort(["--think", "high", "Why?"]), with_effort(["--think", "Why?"])
    (['--think', 'high', 'Why?'], ['--think=on', 'Why?'])
    """
    end = args.index("--") if "--" in args else len(args)
    return [
        f"{THINK}=on" if word == THINK and at < end and args[at + 1 : at + 2] not in _ALONE else word
        for at, word in enumerate(args)
    ]


_ALONE: Final = [[word] for word in THINKING_WORDS]
