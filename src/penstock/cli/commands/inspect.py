"""`penstock inspect`: what a model file is, before anything is run."""

from pathlib import Path
from typing import Annotated

import typer

from penstock.cli import options


def inspect_command(
    model: Annotated[
        Path | None,
        typer.Argument(help=f"{options.MODEL_HELP}  [default: pocket model]"),
    ] = None,
    tensors: Annotated[bool, typer.Option("--tensors", help="List every tensor.")] = False,
    check: Annotated[
        bool, typer.Option("--verify", help="Read every weight and check it is finite.")
    ] = False,
    mtp: Annotated[Path | None, typer.Option(help="GGUF file with the draft block.")] = None,
    json_output: options.Json = False,
) -> None:
    """Show configuration, tensors, bytes by kind and type, and what can be streamed."""
    from penstock.cli.inspect import show_model

    show_model(model or options.default_model(), mtp, tensors, check, json_output)
