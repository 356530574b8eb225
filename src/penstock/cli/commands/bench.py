"""`penstock bench`: how fast a model runs here, and where the time goes."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from penstock.bench.frontiers import parse_frontiers
from penstock.bench.svg import check_picture
from penstock.cli import options
from penstock.engine.options import EngineOptions
from penstock.errors import OptionError

MOST_DECODED = 1 << 16


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
    if plot is not None:
        check_picture(plot, "--plot")
    for path in (csv, plot):  # before an hour of measuring, not after it
        if path is not None:
            _check_writable(path)
    # What computes is loaded when there is something to compute.
    from penstock.cli.bench_report import Asked, bench

    chosen = given(max_rewind=max(64, decode))
    raise typer.Exit(bench(model, chosen, Asked(frontiers, decode, repeat, csv, plot, json_output)))


def _check_writable(path: Path) -> None:
    """Without leaving anything behind: it may yet be interrupted."""
    new = not path.exists()
    try:
        path.open("a").close()
        if new:
            path.unlink()
    except OSError as error:
        raise OptionError(f"{path}: cannot be written: {error.strerror}") from None
