"""`penstock launch`: the clients that people use, set up for this server."""

import os
import shlex
import shutil
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from penstock.clients.first_prompt import forecast
from penstock.clients.setups import SETUPS, Setup
from penstock.clients.target import Target, find
from penstock.environment import API_KEY
from penstock.errors import OptionError, PenstockError

Client = StrEnum("Client", {name: name for name in SETUPS})  # type: ignore[misc]
SERVER = "http://127.0.0.1:8080"
Url = Annotated[str, typer.Option(help="Where the server listens.")]
ModelName = Annotated[
    str | None, typer.Option(help="What the model is called; otherwise the server is asked.")
]
ApiKey = Annotated[str | None, typer.Option(help="The server's key, if it has one.", envvar=API_KEY.name)]


def launch_command(
    client: Annotated[Client, typer.Argument(help="What is to be set up.", show_default=False)],
    arguments: Annotated[
        list[str] | None, typer.Argument(help="For the client; after --.", show_default=False)
    ] = None,
    url: Url = SERVER,
    model: ModelName = None,
    api_key: ApiKey = None,
    write: Annotated[bool, typer.Option("--write", help="Put it into the client's own files.")] = False,
    run: Annotated[bool, typer.Option("--run", help="Start the client.")] = False,
) -> None:
    """Show, write or use the settings with which a client works with this server.

    Example: penstock launch claude --run
    """
    target = find(url, model, api_key)
    if not target.reached:
        print(
            f"penstock: nobody answers at {target.url}: a model {target.model!r} with a context of "
            f"{target.context:,} tokens is assumed",
            file=sys.stderr,
        )
    setup = SETUPS[client](target)
    if write:
        _write(client, setup)
    if (run or write) and (expected := forecast(client, target, Path.cwd())):
        print(f"penstock: {expected}", file=sys.stderr)
    if run:
        _run(client, setup, arguments or [])
    if not write:
        _show(client, target, setup, arguments or [])


def _show(client: str, target: Target, setup: Setup, arguments: list[str]) -> None:
    print(f"# {client} with {target.model} at {target.url}, {target.context:,} tokens of context")
    for file in setup.files:
        purpose = "needed" if setup.needed else "instead of the environment below"
        print(f"\n# {file.path}   ({purpose}; --write merges it in)\n{file.alone}", end="")
    print("\n# to start it")
    for name, value in setup.environment.items():
        print(f"export {name}={shlex.quote(value)}")
    print(shlex.join([*setup.command, *arguments]))
    for note in (setup.note, forecast(client, target, Path.cwd())):
        if note:
            print(f"\n# {note}")


def _write(client: str, setup: Setup) -> None:
    if not setup.files:
        raise OptionError(
            f"--write: {client} has no configuration file; leave the flag out for its environment"
        )
    for file in setup.files:
        kept = file.path.exists()
        if not file.write():
            print(f"{file.path} says so already")
        else:
            print(f"{file.path} written" + (f", the old one is {file.path.name}.bak" if kept else ""))
    print(f"start it with: {shlex.join(setup.command)}")


def _run(client: str, setup: Setup, arguments: list[str]) -> NoReturn:
    """Becomes the client."""
    if unfit := setup.unfit_file():
        why = "also needs" if setup.needed else "is told something else by"
        raise OptionError(f"--run: {client} {why} {unfit}; add --write")
    program = setup.command[0]
    if shutil.which(program) is None:
        raise PenstockError(f"--run: {program!r} is not installed, or not on PATH")
    sys.stdout.flush()
    os.execvpe(program, [*setup.command, *arguments], {**os.environ, **setup.environment})
