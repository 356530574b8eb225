"""`penstock`: the commands, and what happens when one fails."""

import os
import signal
import sys
from contextlib import suppress
from importlib import import_module
from io import TextIOWrapper
from typing import Annotated, Any, Final, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup

import penstock
from penstock.cli.command import PLAIN, Command, WrongUse
from penstock.environment import VARIABLES
from penstock.errors import PenstockError

INTERRUPTED: Final = 130  # exit status after Ctrl-C

# What each command does, as its own help begins.  Its module in `commands` has its name and is imported when it runs.
COMMANDS: Final = {
    "run": "Generate text from a prompt.",
    "pull": "Download a model from Hugging Face; without a name, show which there are and how they would run here.",
    "models": "Show the models that are here, and how they would run here.",
    "chat": "Talk with a model.",
    "serve": "Answer requests over HTTP.",
    "worker": "Run some layers or experts of a model for `penstock serve --cluster` on another machine.",
    "launch": "Show, write or use the settings with which a client works with this server.",
    "warm": "Let a client ask something, and keep the prompt that it begins with: the next time it starts at once.",
    "plan": "Show what a model would take from a budget of memory, and the speed to expect.",
    "inspect": "Show configuration, tensors, bytes by kind and type, and what can be streamed.",
    "bench": "Measure prefill and decode speed at growing context, time by part, and the distance to memory's "
    "own speed.",
    "doctor": "Check what Penstock needs from this machine.  The exit status is 1 if something cannot work.",
    "quantize": "Write a model as one GGUF file in other types, for Penstock and llama.cpp.",
    "imatrix": "Measure on a text which columns of every weight count, for `penstock quantize`.",
    "pack": "Copy the experts to a file from which each one is a single read, if this disk is faster that way.",
    "synth": "Write a valid model with random weights, for tests and benchmarks.",
    "trace": "Record which experts are needed; compare caches on the record.",
}

ALIASES: Final = {"convert": "quantize"}  # what the pocket model answers, and older scripts call


class Commands(TyperGroup):
    """All commands by name; the one that is called is loaded."""

    def __init__(self, **attributes: Any):
        super().__init__(**attributes)
        self.commands = {name: TyperCommand(name, help=help) for name, help in COMMANDS.items()}

    def format_commands(self, _: Any, formatter: Any) -> None:
        """Whole sentences."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, _, rest = super().resolve_command(ctx, [ALIASES.get(args[0], args[0]), *args[1:]])
        return name, None if name is None else load(name), rest


def load(name: str) -> Any:
    """A command as its module has it: a function, or an app with commands of its own."""
    module = import_module(f"penstock.cli.commands.{name}")
    app = getattr(module, f"{name}_app", None)
    if app is None:
        app = typer.Typer(add_completion=False, **PLAIN)
        app.command(name)(getattr(module, f"{name}_command"))
    for command in app.registered_commands:
        command.cls = Command
    return typer.main.get_command(app)


app = typer.Typer(
    name="penstock", cls=Commands, help="DeepSeek-V4 on the machine you have.", no_args_is_help=True, **PLAIN
)


def _version(asked: bool) -> None:
    if asked:
        print(f"penstock {penstock.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    del version  # its callback has acted


def main() -> None:
    """Entry point.  What is expected to go wrong is one line on stderr, never a traceback; the status is 1 for an
    error, 2 for a wrong flag, 130 after Ctrl-C, and 0 if whoever read the output has enough of it."""
    signal.signal(signal.SIGINT, _interrupt)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(
                errors="replace"
            )  # a terminal that does not know a letter is no reason to fail
    status = _status()
    try:
        sys.stdout.flush()
    except (
        BrokenPipeError
    ):  # what is left has no reader either; Python would complain about it at the very end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 0
    signal.signal(signal.SIGINT, _leave)
    sys.exit(status)


def _status() -> int:
    """Runs the command that was asked for."""
    try:
        for variable in VARIABLES:
            variable.read()  # a value that cannot be is an error, whoever needs it
        return int(app(prog_name="penstock", standalone_mode=False) or 0)
    except PenstockError as error:
        return _complain(str(error), 1)
    except WrongUse as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # a name alone, to see what there is
            print(error.format_message())
            return 0
        return _complain(_one_line(error), 2)
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except BrokenPipeError:  # the reader of our output went away, e.g. `penstock inspect … | head`
        return 0
    except SystemExit as end:  # libraries have their own idea of what to do then
        if isinstance(end.__context__, BrokenPipeError):
            return 0
        return end.code if isinstance(end.code, int) else int(end.code is not None)


def _complain(words: str, status: int) -> int:
    with suppress(BrokenPipeError):
        print(f"penstock: {words}", file=sys.stderr, flush=True)
    return status


def _one_line(error: Any) -> str:
    """What was wrong with the command line, and where to look."""
    context = error.ctx
    path = context.command_path if context is not None else "penstock"
    what = " ".join(error.format_message().split()).rstrip(".")
    command = path.removeprefix("penstock").strip()
    return f"{command + ': ' if command else ''}{what[:1].lower()}{what[1:]} (see {path} --help)"


def _interrupt(*_: object) -> NoReturn:
    """The first Ctrl-C ends what is going on in good order, the second at once."""
    signal.signal(signal.SIGINT, _leave)
    raise KeyboardInterrupt


def _leave(*_: object) -> NoReturn:
    os._exit(INTERRUPTED)


if __name__ == "__main__":
    main()
