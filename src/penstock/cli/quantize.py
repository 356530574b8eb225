"""`penstock quantize`: a model as a GGUF file in other types."""

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import rich.progress
import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.table import Table

from penstock.cli import options
from penstock.hub.find import find_model
from penstock.sizes import size
from penstock.weights.convert import FileReport, Progress, convert
from penstock.weights.mixes import MIXES, NAMED


def quantize_command(
    source: Annotated[Path, typer.Argument(help="GGUF file, checkpoint folder, or hf:REPO[:FILE].")],
    destination: Annotated[Path, typer.Argument(help="GGUF file to write.")],
    mix: Annotated[
        str,
        typer.Option(
            help=f"Types of the weights: {', '.join(MIXES)}; changes follow behind commas, as in "
            f"q4,down=q6_k ({', '.join(NAMED)}, other, or a pattern of names)."
        ),
    ],
    imatrix: Annotated[
        Path | None,
        typer.Option(help="Importance matrix, as `penstock imatrix` and llama-imatrix write it."),
    ] = None,
    mtp: Annotated[Path | None, typer.Option(help="Write the draft (MTP) block to this GGUF file.")] = None,
    mtp_inside: Annotated[
        bool, typer.Option("--mtp-inside", help="Write the draft block into the same file.")
    ] = False,
    threads: Annotated[
        int | None, typer.Option("--threads", "-t", min=1, help="CPU threads.", show_default="all cores")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace files that exist.")] = False,
    json_output: options.Json = False,
) -> None:
    """Write a model as one GGUF file in other types, for Penstock and llama.cpp.

    A run that was interrupted goes on where it was when the same command is given again.

    Example: penstock quantize DeepSeek-V4-Flash flash-q2.gguf --mix q2 --imatrix flash.imatrix.gguf
    """
    begin = time.perf_counter()
    try:
        with _bar() as progress:
            report = convert(
                find_model(source),
                destination,
                mix,
                imatrix=imatrix,
                mtp=mtp,
                mtp_inside=mtp_inside,
                overwrite=force,
                threads=threads,
                progress=progress,
            )
    except KeyboardInterrupt:
        print("penstock: interrupted; the same command goes on where it was", file=sys.stderr)
        raise
    seconds = time.perf_counter() - begin
    if json_output:
        print(json.dumps(report.as_dict() | {"seconds": seconds}))
        return
    console = Console()
    for file in (report.main, report.mtp):
        if file is not None:
            _print_file(console, file)
    written = sum(sum(f.bytes_by_type.values()) for f in (report.main, report.mtp) if f) - report.kept_bytes
    console.print(
        f"{size(written)} written in {seconds:.1f} s, {size(int(written / seconds))}/s", highlight=False
    )
    for note in report.notes:
        console.print(note, markup=False, soft_wrap=True)


@contextmanager
def _bar() -> Iterator[Progress]:
    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    tensor = TextColumn("{task.description}", markup=False)
    console = Console(stderr=True)
    with rich.progress.Progress(
        *columns, tensor, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task("reading the checkpoint", total=None)
        yield lambda done, total, name: bar.update(task, completed=done, total=total, description=name)


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
