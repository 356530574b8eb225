"""`penstock warm`: the prompt that a client begins with, read before anybody waits for it."""

import shutil
import sys
from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.commands.launch import SERVER, ApiKey, Client, ModelName, Url
from penstock.clients.first_prompt import FIRST_PROMPTS, expected_wait, label
from penstock.clients.first_question import ClientRun, read_ahead
from penstock.clients.setups import SETUPS
from penstock.clients.target import find
from penstock.errors import OptionError, PenstockError


def warm_command(
    client: Annotated[Client, typer.Argument(help="Whose prompt it is.", show_default=False)],
    url: Url = SERVER,
    model: ModelName = None,
    api_key: ApiKey = None,
    headless: Annotated[
        bool,
        typer.Option("--headless", help="Run it without its screen; some clients have other prompts then."),
    ] = False,
) -> None:
    """Let a client ask something, and keep the prompt that it begins with: the next time it starts at once.

    The client is started in this folder with a question, and ended when the server has read what comes before the
    question.  The server keeps that on disk if it has --kv-dir.  Most clients name the folder in their prompt, and
    some the day: what is kept counts there.

    Example: penstock warm claude
    """
    first, folder = FIRST_PROMPTS[client], Path.cwd()
    if not first.once:
        raise OptionError(f"{client} asks only what people ask on its page: it cannot be made to ask ahead")
    target = find(url, model, api_key)
    if not target.reached:
        raise PenstockError(f"nobody answers at {target.url}: start `penstock serve --kv-dir FOLDER` first")
    setup = SETUPS[client](target)
    if unfit := setup.unfit_file():
        raise OptionError(f"{unfit} has to be written first: `penstock launch {client} --write`")
    if shutil.which(setup.command[0]) is None:
        raise PenstockError(f"{setup.command[0]!r} is not installed, or not on PATH")
    name = label(client, folder)
    if not target.pinned.get(name) and (wait := expected_wait(client, target)):
        print(f"penstock: {wait}", file=sys.stderr)
    screen = bool(first.open) and not headless and sys.stdin.isatty() and sys.stdout.isatty()
    command = [*setup.command, *(first.open if screen else first.once)]
    from rich.console import Console

    with Console(stderr=True).status(f"starting {client} …") as status:  # shown only on a terminal
        if screen:
            status.stop()  # the screen is the client's
        tokens = read_ahead(ClientRun(command, setup.environment, screen), target, name, status.update)
    where = "on disk" if target.on_disk else "in memory, until the server ends (--kv-dir keeps them longer)"
    print(f"{tokens:,} tokens that {client} begins with in {folder} are kept {where}")
