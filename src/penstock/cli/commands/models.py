"""`penstock models`: what is here, and how it runs here."""

from typing import Annotated

import typer

from penstock.cli import options
from penstock.cli.command import PLAIN

models_app = typer.Typer(
    name="models",
    help="Show the models that are here, and how they would run here.",
    invoke_without_command=True,
    add_completion=False,
    **PLAIN,
)


@models_app.callback()
def models_command(
    context: typer.Context,
    everything: Annotated[
        bool, typer.Option("--all", help="Also what is in the cache and cannot be run, with the reason.")
    ] = False,
    json_output: options.Json = False,
) -> None:
    """Show the models that are here, and how they would run here.

    Those in the package, in the folder of models ($PENSTOCK_MODELS) and in Hugging Face's cache.  `-m` takes their
    names, or parts of names that no other has.

    Example: penstock models --json
    """
    if context.invoked_subcommand is not None:
        return
    from penstock.cli.models import show_models

    show_models(everything, json_output)


@models_app.command("rm")
def rm_command(
    name: Annotated[str, typer.Argument(help="A name that `penstock models` shows, or a repository.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Delete a model from this disk.

    Example: penstock models rm antirez/deepseek-v4-gguf:q2
    """
    from penstock.cli.models import remove_model

    remove_model(name, yes)
