"""`penstock convert`: a checkpoint folder becomes a GGUF file."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.table import Table

from penstock.cli import options
from penstock.hub.find import find_model
from penstock.sizes import size
from penstock.weights.convert import ConvertReport, FileReport, convert
from penstock.weights.mixes import MIXES


def convert_command(
    source: Annotated[
        Path, typer.Argument(help="Checkpoint folder: config.json and safetensors; or hf:REPO.")
    ],
    destination: Annotated[Path, typer.Argument(help="GGUF file to write.")],
    mix: Annotated[str, typer.Option(help=f"Types of the weights: {', '.join(MIXES)}.")],
    mtp: Annotated[Path | None, typer.Option(help="Write the draft (MTP) block to this GGUF file.")] = None,
    mtp_inside: Annotated[
        bool, typer.Option("--mtp-inside", help="Write the draft block into the same file.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace files that exist.")] = False,
    json_output: options.Json = False,
) -> None:
    """Convert a DeepSeek or Hugging Face checkpoint to one GGUF file for Penstock and llama.cpp.

    Example: penstock convert DeepSeek-V4-Flash flash.gguf --mix mxfp4
    """
    report = _with_bar(find_model(source), destination, mix, mtp, mtp_inside, force)
    if json_output:
        print(json.dumps(report.as_dict()))
        return
    console = Console()
    for file in (report.main, report.mtp):
        if file is not None:
            _print_file(console, file)
    for note in report.notes:
        console.print(note, markup=False, soft_wrap=True)


def _with_bar(
    source: Path, destination: Path, mix: str, mtp: Path | None, mtp_inside: bool, force: bool
) -> ConvertReport:
    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    tensor = TextColumn("{task.description}", markup=False)
    console = Console(stderr=True)
    with Progress(*columns, tensor, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("reading the checkpoint", total=None)

        def show(done: int, total: int, name: str) -> None:
            bar.update(task, completed=done, total=total, description=name)

        return convert(
            source, destination, mix, mtp=mtp, mtp_inside=mtp_inside, overwrite=force, progress=show
        )


def _print_file(console: Console, file: FileReport) -> None:
    console.print(
        f"{file.path}: {file.tensors:,} tensors, {file.kept:,} exact and {file.requantised:,} requantised",
        markup=False,
        soft_wrap=True,
    )
    table = Table("type", "bytes", box=None)
    for kind, nbytes in sorted(file.bytes_by_type.items(), key=lambda item: -item[1]):
        table.add_row(kind, size(nbytes))
    console.print(table)
