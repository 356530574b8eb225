"""`penstock`: the commands, and what happens when one fails."""

import sys
from importlib import import_module
from typing import Annotated, Any, Final

import typer
from typer.core import TyperCommand, TyperGroup

import penstock
from penstock.environment import VARIABLES
from penstock.errors import PenstockError

# What each command does, as its own help begins.  Its module has its name and is imported when it runs.
COMMANDS: Final = {
    "run": "Generate text from a prompt.",
    "chat": "Talk with a model.",
    "serve": "Answer requests over HTTP.",
    "launch": "Show, write or use the settings with which a client works with this server.",
    "warm": "Let a client ask something, and keep the prompt that it begins with: the next time it starts at once.",
    "plan": "Show what a model would take from a budget of memory, and the speed to expect.",
    "inspect": "Show configuration, tensors, bytes by kind and type, and what can be streamed.",
    "bench": "Measure prefill and decode speed at growing context, time by part, and the distance to memory's "
    "own speed.",
    "doctor": "Check what Penstock needs from this machine.  The exit status is 1 if something cannot work.",
    "convert": "Convert a DeepSeek or Hugging Face checkpoint to one GGUF file for Penstock and llama.cpp.",
    "pack": "Copy the experts to a file from which each one is a single read, if this disk is faster that way.",
    "synth": "Write a valid model with random weights, for tests and benchmarks.",
    "trace": "Record which experts are needed; compare caches on the record.",
}


class Commands(TyperGroup):
    """All commands by name; the one that is called is loaded."""

    def __init__(self, **attributes: Any):
        super().__init__(**attributes)
        self.commands = {name: TyperCommand(name, help=help) for name, help in COMMANDS.items()}

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, _, rest = super().resolve_command(ctx, args)
        return name, None if name is None else load(name), rest


def load(name: str) -> Any:
    """A command as its module has it: a function, or an app with commands of its own."""
    module = import_module(f"penstock.cli.{name}")
    app = getattr(module, f"{name}_app", None)
    if app is None:
        app = typer.Typer(add_completion=False)
        app.command(name)(getattr(module, f"{name}_command"))
    return typer.main.get_command(app)


app = typer.Typer(
    name="penstock",
    cls=Commands,
    help="DeepSeek-V4 on the machine you have.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
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
    """Entry point: an expected failure is one line on stderr and exit status 1, never a traceback."""
    try:
        for variable in VARIABLES:
            variable.read()  # a value that cannot be is an error, whoever needs it
        app()
    except PenstockError as error:
        print(f"penstock: {error}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:  # the reader of our output went away, e.g. `penstock inspect … | head`
        sys.stderr.close()
        sys.exit(0)


if __name__ == "__main__":
    main()
