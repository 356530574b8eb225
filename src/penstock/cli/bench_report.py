"""Measuring for `penstock bench`, and what it shows of it: tables, JSON, a CSV file, a picture."""

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple, NoReturn

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from penstock.backend.device import DeviceBackend
from penstock.bench.bandwidth import read_bandwidth
from penstock.bench.frontiers import fit_frontiers
from penstock.bench.plot import draw, short
from penstock.bench.report import Report, summarise
from penstock.bench.sweep import Timing, Trial, sweep, sweep_tokens
from penstock.bench.traffic import Part, weight_bytes
from penstock.cli.opening import open_engine
from penstock.engine.engine import Engine
from penstock.engine.options import EngineOptions
from penstock.machine.cpu import cache_bytes
from penstock.sizes import size

SHOWN: Final = 0.01  # of a token's time, from which a kernel has a line of its own
INTERRUPTED: Final = 130  # exit status of a command that Ctrl-C ended


class Asked(NamedTuple):
    frontiers: list[int]
    decode: int
    repeat: int
    csv: Path | None
    plot: Path | None
    as_json: bool


def bench(model: Path | None, chosen: EngineOptions, asked: Asked) -> int:
    """Measures, shows, and returns the exit status."""
    engine = open_engine(model, chosen)
    frontiers, note = fit_frontiers(asked.frontiers, engine.context, asked.decode)
    notes = [note] if note else []
    device = engine.backend if isinstance(engine.backend, DeviceBackend) else None
    bandwidth = device.speeds().memory if device else read_bandwidth(engine.options.thread_count)
    if device is not None:
        notes.append(f"on {device.description}; kernels of a decoded token from the driver's records")
    elif sum(weight_bytes(engine.checkpoint).values()) < cache_bytes():
        notes.append("what a token reads fits the CPU's cache, so it may be faster than memory allows")
    trials, interrupted = _measure(engine, frontiers, asked.decode, asked.repeat)
    if not trials:
        return INTERRUPTED
    if interrupted:
        notes.append(f"interrupted: {len(trials)} of {asked.repeat * len(frontiers)} measurements were made")
    report = summarise(engine, trials, bandwidth, notes)
    if asked.csv is not None:
        asked.csv.write_text(report.as_csv())
    if asked.plot is not None:
        asked.plot.write_text(draw(report))
    if asked.as_json:
        print(json.dumps(report.as_dict()))
    else:
        _print(report)
    status = INTERRUPTED if interrupted else 0
    if device is not None:
        _end(engine, status)
    return status


def _end(engine: Engine, status: int) -> NoReturn:
    """At once: when a process ends in which torch's profiler (2.11) has seen graphs, memory is freed twice."""
    engine.close()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _measure(engine: Engine, frontiers: Sequence[int], decode: int, repeat: int) -> tuple[list[Trial], bool]:
    """What was measured, and whether Ctrl-C cut it short."""
    trials: list[Trial] = []
    columns = (
        TextColumn("measuring"),
        BarColumn(),
        TextColumn("{task.completed:,} tokens"),
        TimeRemainingColumn(),
    )
    console = Console(stderr=True)
    try:
        with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
            task = bar.add_task("measuring", total=sweep_tokens(frontiers, decode, repeat))
            for trial in sweep(engine, frontiers, decode, repeat, progress=lambda n: bar.advance(task, n)):
                trials.append(trial)
    except KeyboardInterrupt:
        return trials, True
    return trials, False


def _print(report: Report) -> None:
    console = Console(highlight=False)
    many = "s" if report.threads > 1 else ""
    console.print(f"{report.model}: {report.threads} thread{many}, {report.kv_dtype} state", markup=False)
    console.print(f"memory can be read at {report.bandwidth / 1e9:.1f} GB/s")
    console.print(_speeds(report))
    console.print(_kernels(report) if report.kernels else _times(report))
    for note in report.notes:
        console.print(note, markup=False)


def _speeds(report: Report) -> Table:
    table = Table(box=None)
    for column in (
        "context",
        "prefill tok/s",
        "decode tok/s",
        "ms/token",
        "read/token",
        "floor ms",
        "of floor",
    ):
        table.add_column(column, justify="right")
    for point in report.points:
        table.add_row(
            short(point.context),
            _speed(point.prefill.per_second, point.prefill_range, report.repeat),
            _speed(point.decode.per_second, point.decode_range, report.repeat),
            f"{1e3 / point.decode.per_second:.2f}",
            size(point.bytes_per_token),
            f"{1e3 * point.floor_s:.2f}",
            f"{point.of_floor:.0%}",
        )
    return table


def _speed(middle: float, between: tuple[float, float], repeat: int) -> str:
    spread = f" ({between[0]:.1f}–{between[1]:.1f})" if repeat > 1 else ""
    return f"{middle:.1f}{spread}"


def _times(report: Report) -> Table:
    """Milliseconds per token by part."""
    table = Table("ms per token", box=None)
    for phase in ("prefill", "decode"):
        for point in report.points:
            table.add_column(f"{phase} {short(point.context)}", justify="right")
    for part in report.parts:
        timings = [getattr(point, phase) for phase in ("prefill", "decode") for point in report.points]
        table.add_row(part.value, *(_part(timing, part) for timing in timings))
    return table


def _kernels(report: Report) -> Table:
    """Milliseconds of a decoded token by kernel; those that take less than a hundredth share a line."""
    table = Table("ms per token", box=None)
    for point in report.points:
        table.add_column(f"decode {short(point.context)}", justify="right")
    found = [{kernel.name: kernel.seconds for kernel in point.kernels} for point in report.points]
    shown = [
        name
        for name in report.kernels
        if any(each.get(name, 0) > SHOWN * sum(each.values()) for each in found)
    ]
    for name in shown:
        table.add_row(name, *(_share(each.get(name, 0.0), sum(each.values())) for each in found))
    rest = [sum(seconds for name, seconds in each.items() if name not in shown) for each in found]
    table.add_row("others", *(_share(rest[n], sum(each.values())) for n, each in enumerate(found)))
    return table


def _share(seconds: float, of: float) -> str:
    return f"{1e3 * seconds:.3f} {seconds / of if of else 0.0:4.0%}"


def _part(timing: Timing, part: Part) -> str:
    seconds = timing.parts.get(part, 0.0)
    return _share(seconds / timing.tokens, timing.seconds / timing.tokens)
