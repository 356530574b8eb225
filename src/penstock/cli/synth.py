"""What `penstock synth` does: write a model with random weights."""

import json
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from penstock.weights.synth import SynthPlan, SynthReport, plan_synth, write_synth


def synth(wanted: dict[str, Any], destination: Path, force: bool, json_output: bool) -> None:
    """wanted: arguments of `plan_synth`."""
    plan = plan_synth(**wanted)
    report = _write(plan, destination, force, quiet=json_output)
    if json_output:
        print(json.dumps(_as_json(plan, report)))
    else:
        _print(report)


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
