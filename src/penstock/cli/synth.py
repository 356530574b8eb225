"""`penstock synth`: write a model with random weights."""

import json
import sys
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

from penstock.cli import options
from penstock.errors import OptionError
from penstock.weights.synth import MIXES, SynthPlan, SynthReport, plan_synth, write_synth
from penstock.weights.widths import WIDTHS


def synth_command(
    destination: Annotated[Path, typer.Argument(metavar="DST", help="The .gguf file to write.")],
    width: Annotated[str, typer.Option(help=f"Size of the model: {', '.join(WIDTHS)}.")] = "tiny",
    layers: Annotated[
        int | None, typer.Option(help="Only the first so many layers.", show_default="all")
    ] = None,
    mix: Annotated[str, typer.Option(help=f"How matrices are stored: {', '.join(MIXES)}.")] = "q2",
    vocab: Annotated[
        int | None, typer.Option(help="Vocabulary size.", show_default="512, or 129280 as published")
    ] = None,
    skew: Annotated[
        float, typer.Option(help="Exponent of Zipf's law for how often experts are chosen; 0: all alike.")
    ] = 0.0,
    seed: Annotated[int, typer.Option(help="The same seed gives the same file.")] = 0,
    ratios: Annotated[
        str | None,
        typer.Option(help="Compression ratio of each layer, e.g. 0,4,128.", show_default="as published"),
    ] = None,
    hash_layers: Annotated[
        int | None, typer.Option(help="How many first layers are hash-routed.", show_default="as published")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it exists.")] = False,
    json_output: options.Json = False,
) -> None:
    """Write a valid model with random weights, for tests and benchmarks."""
    plan = plan_synth(
        width=width,
        layers=layers,
        mix=mix,
        vocab=vocab,
        skew=skew,
        seed=seed,
        ratios=_parse_ratios(ratios),
        hash_layers=hash_layers,
    )
    report = _write(plan, destination, force, quiet=json_output)
    if json_output:
        print(json.dumps(_as_json(plan, report)))
    else:
        _print(report)


def _parse_ratios(text: str | None) -> list[int] | None:
    if text is None:
        return None
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise OptionError(f"--ratios is {text!r}, expected whole numbers such as 0,4,128") from None


def _write(plan: SynthPlan, destination: Path, force: bool, quiet: bool) -> SynthReport:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    # On stderr, and only for a person: stdout belongs to the report.
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=quiet or not sys.stderr.isatty()) as bar:
        task = bar.add_task(destination.name, total=plan.data_bytes)
        return write_synth(plan, destination, overwrite=force, progress=lambda n: bar.advance(task, n))


def _as_json(plan: SynthPlan, report: SynthReport) -> dict[str, object]:
    return {
        "path": str(report.path),
        "name": plan.name,
        "bytes": report.bytes,
        "tensors": report.tensors,
        "seconds": round(report.seconds, 3),
        "mb_per_second": round(report.rate / 1e6, 1),
        "notes": list(report.notes),
    }


def _print(report: SynthReport) -> None:
    print(
        f"{report.path}: {report.bytes:,} bytes, {report.tensors} tensors, {report.seconds:.1f} s, "
        f"{report.rate / 1e6:,.0f} MB/s"
    )
    for note in report.notes:
        print(f"note: {note}")
