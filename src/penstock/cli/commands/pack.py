"""`penstock pack`: a second file from which each expert is one read, where the disk makes that worth it."""

from pathlib import Path
from typing import Annotated

import typer

from penstock.cli import options


def pack_command(
    model: options.Model = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File to write.", show_default="MODEL.pack")
    ] = None,
    measure_only: Annotated[
        bool, typer.Option("--measure", help="Only measure what a pack would gain.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Write a pack that gains little, and replace one that exists.")
    ] = False,
    json_output: options.Json = False,
) -> None:
    """Copy the experts to a file from which each one is a single read, if this disk is faster that way.

    A pack beside its model (MODEL.pack) is found and used by itself.

    Example: penstock pack -m model.gguf --measure
    """
    from penstock.cli.pack import pack

    pack(model or options.default_model(), output, measure_only, force, json_output)
