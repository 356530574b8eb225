"""`penstock doctor`: whether this machine is ready, and what would make it faster."""

from pathlib import Path
from typing import Annotated

import typer

from penstock.cli import options


def doctor_command(
    model: Annotated[
        Path | None,
        typer.Option(
            "--model", "-m", help=f"Also look at this model and the disk it lies on.  {options.MODEL_HELP}"
        ),
    ] = None,
    measure: Annotated[
        bool, typer.Option("--measure", help="Measure machine and disk again, even if they are known.")
    ] = False,
    json_output: options.Json = False,
) -> None:
    """Check what Penstock needs from this machine.  The exit status is 1 if something cannot work.

    Example: penstock doctor -m model.gguf
    """
    from penstock.cli.doctor import examine_machine

    raise typer.Exit(0 if examine_machine(model, measure, json_output) else 1)
