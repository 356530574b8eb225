"""`penstock bench`: how fast a model runs here, and where the time goes."""

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from penstock.backend.base import DeviceBackend
from penstock.bench.bandwidth import read_bandwidth
from penstock.bench.frontiers import fit_frontiers, parse_frontiers
from penstock.bench.plot import draw, short
from penstock.bench.report import Report, summarise
from penstock.bench.sweep import Timing, Trial, sweep, sweep_tokens
from penstock.bench.traffic import Part, weight_bytes
from penstock.cli import options
from penstock.cli.inspect import size
from penstock.cli.opening import open_engine
from penstock.engine.engine import Engine
from penstock.engine.options import EngineOptions
from penstock.errors import OptionError
from penstock.machine.cpu import cache_bytes

MOST_DECODED = 1 << 16
INTERRUPTED = 130  # exit status of a command that Ctrl-C ended


@options.with_flags
def bench_command(
    given: partial[EngineOptions],
    model: options.Model = None,
    context: Annotated[str, typer.Option(help="Where to measure, e.g. 512,2k,8k,32k.")] = "512,2k,8k",
    decode: Annotated[int, typer.Option(help="Tokens to decode at each length.")] = 32,
    repeat: Annotated[int, typer.Option(help="Measure so many times and show the middle.")] = 1,
    json_output: options.Json = False,
    csv: Annotated[Path | None, typer.Option(help="Write a table to this CSV file.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw a picture to this SVG file.")] = None,
) -> None:
    """Measure prefill and decode speed at growing context, time by part, and the distance to memory's own speed.

    Example: penstock bench -m model.gguf --context 512,2k,8k,32k --plot speed.svg
    """
    frontiers = parse_frontiers(context)
    for flag, value, most in (("decode", decode, MOST_DECODED), ("repeat", repeat, 1000)):
        if not 1 <= value <= most:
            raise OptionError(f"--{flag} is {value}, expected a whole number from 1 to {most:,}")
    for path in (csv, plot):  # before an hour of measuring, not after it
        if path is not None:
            _check_writable(path)
    engine = open_engine(model, given(max_rewind=max(64, decode)))
    frontiers, note = fit_frontiers(frontiers, engine.context, decode)
    notes = [note] if note else []
    device = engine.backend if isinstance(engine.backend, DeviceBackend) else None
    bandwidth = device.speeds().memory if device else read_bandwidth(engine.options.thread_count)
    if device is not None:
        notes.append(f"on {device.description}; parts are the host's time, while the GPU works on its own")
    elif sum(weight_bytes(engine.checkpoint).values()) < cache_bytes():
        notes.append("what a token reads fits the CPU's cache, so it may be faster than memory allows")
    trials, interrupted = _measure(engine, frontiers, decode, repeat)
    if not trials:
        raise typer.Exit(INTERRUPTED)
    if interrupted:
        notes.append(f"interrupted: {len(trials)} of {repeat * len(frontiers)} measurements were made")
    report = summarise(engine, trials, bandwidth, notes)
    if csv is not None:
        csv.write_text(report.as_csv())
    if plot is not None:
        plot.write_text(draw(report))
    if json_output:
        print(json.dumps(report.as_dict()))
    else:
        _print(report)
    if interrupted:
        raise typer.Exit(INTERRUPTED)


def _check_writable(path: Path) -> None:
    try:
        path.open("a").close()
    except OSError as error:
        raise OptionError(f"{path}: cannot be written: {error.strerror}") from None


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
    console.print(_times(report))
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


def _part(timing: Timing, part: Part) -> str:
    seconds = timing.parts.get(part, 0.0)
    return f"{1e3 * seconds / timing.tokens:.3f} {seconds / timing.seconds:4.0%}"
