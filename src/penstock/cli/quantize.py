"""What `penstock quantize` does: a model as a GGUF file in other types."""

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import rich.progress
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.table import Table

from penstock.hub.find import find_model
from penstock.sizes import size
from penstock.weights.convert import FileReport, Progress, convert


def quantize(
    source: Path,
    destination: Path,
    mix: str,
    imatrix: Path | None,
    mtp: Path | None,
    mtp_inside: bool,
    force: bool,
    threads: int | None,
    json_output: bool,
) -> None:
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
