"""Flags of commands, made from the dataclasses that declare the options."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import is_dataclass
from functools import partial, wraps
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

import typer

from penstock.chat.messages import THINKING_WORDS
from penstock.errors import OptionError
from penstock.option import Option, options_of
from penstock.pocket import pocket_path

MODEL_HELP = (
    "GGUF file, first split, checkpoint folder, hf:REPO[:FILE], or a name that `penstock models` lists."
)


def completing(words: Sequence[str]) -> Callable[[str], list[str]]:
    """What a shell may offer for the value of a flag that takes a few words."""

    def complete(incomplete: str) -> list[str]:
        return [word for word in words if word.startswith(incomplete)]

    return complete


Model = Annotated[
    Path | None, typer.Option("--model", "-m", help=MODEL_HELP, show_default="the pocket model")
]
Stats = Annotated[
    bool,
    typer.Option(
        "--stats",
        help="Show how fast it was, and what was read, hit and waited for; of long answers a line is shown "
        "on a terminal anyway.",
    ),
]
Think = Annotated[
    str,
    typer.Option(
        "--think",
        metavar="|".join(THINKING_WORDS),
        autocompletion=completing(THINKING_WORDS),
        help="Reason before answering, and how hard; --think alone is --think on, the effort that the model has "
        "by itself.",
    ),
]
MaxTokens = Annotated[
    int | None,
    typer.Option(
        "--max-tokens",
        "-n",
        help="Most tokens of an answer, its reasoning included.",
        show_default="until it ends or the context does",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def check_max_tokens(given: int | None) -> None:
    if given is not None and given < 1:
        raise OptionError(f"--max-tokens is {given}, expected a whole number from 1")


def default_model() -> Path:
    """The model that a command uses when none is named: the pocket model."""
    return pocket_path()


def with_flags(command: Callable[..., None]) -> Callable[..., None]:
    """A command with a flag for every option that its parameters declare.

    A parameter `chosen: EngineOptions` becomes the flags of those options that name this command, and gets their
    checked value; `given: partial[Settings]` gets it without what the command adds when it calls that.

        @with_flags
        def run_command(prompt: Prompt, chosen: EngineOptions, given: partial[Sampling]) -> None: ...
    """
    name = command.__name__.removesuffix("_command").replace("_", " ")  # trace_record_command: "trace record"
    own = inspect.signature(command).parameters
    declaring = {key: _declaring(found.annotation) for key, found in own.items()}
    flags = {
        key: [option for option in options_of(found).values() if name in option.commands]
        for key, found in declaring.items()
        if found is not None
    }

    @wraps(command)
    def called(**values: Any) -> None:
        for key, options in flags.items():
            chosen = {option.name: option.parse(values.pop(option.name)) for option in options}
            made = partial(declaring[key], **chosen)
            values[key] = made if get_origin(own[key].annotation) is partial else made()
        command(**values)

    parameters = [
        *(found.replace(kind=found.KEYWORD_ONLY) for key, found in own.items() if key not in flags),
        *(_parameter(option) for options in flags.values() for option in options),
    ]
    called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    called.__annotations__ = {found.name: found.annotation for found in parameters}
    return called


def _declaring(annotation: Any) -> Any:
    """The dataclass of options that a parameter stands for; None for a parameter of another kind."""
    found = get_args(annotation)[0] if get_origin(annotation) is partial else annotation
    return found if is_dataclass(found) else None


def _parameter(option: Option) -> inspect.Parameter:
    default, flags = option.kind.write(option.command_default), option.flags
    if option.kind.type is bool and default:
        flags = (f"{option.flag}/--no-{option.flag[2:]}",)
    words = [word for word in (option.metavar or "").split("|") if word.islower()]
    shown = typer.Option(
        *flags,
        help=option.help,
        metavar=option.metavar,
        show_default=option.unset if default is None and option.unset else True,
        rich_help_panel=option.group or None,
        autocompletion=completing(words) if words else None,
    )
    kind = option.kind.type | None if default is None else option.kind.type
    return inspect.Parameter(
        option.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, shown]
    )
