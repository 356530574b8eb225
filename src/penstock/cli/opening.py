"""Opening a model for a command, with progress for those who wait, and what its storage did in one line."""

import sys
import warnings
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from penstock.cli import options
from penstock.engine.engine import Engine
from penstock.engine.options import EngineOptions
from penstock.engine.weights import Loading
from penstock.option import given


def open_engine(model: Path | None, chosen: EngineOptions, *, load: bool = True) -> Engine:
    """The engine for the options that a command was given.  Loading, unless `load` is False, shows on a terminal."""
    with _bar() as bar:
        task = bar.add_task("", total=None, visible=False)

        def progress(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total, visible=True)

        with warnings.catch_warnings(record=True) as noticed:
            path = model or options.default_model()
            engine = Engine(path, progress=progress, load=load, **given(chosen))
    for warning in noticed:  # in the form of an error, without the line of code that Python would add
        print(f"penstock: {warning.message}", file=sys.stderr)
    return engine


def _bar() -> Progress:
    columns = (TextColumn("reading weights"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    console = Console(stderr=True)
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


class LoadingBar:
    """For an engine that somebody else loads: to be shown now and then, from the beginning until it is over."""

    def __init__(self) -> None:
        self._bar = _bar()
        self._task = self._bar.add_task("", total=None)

    def show(self, loading: Loading | None) -> None:
        if loading is None:
            self._bar.stop()
        else:
            self._bar.start()
            self._bar.update(self._task, completed=loading.done, total=loading.total or None)


def stats_line(before: dict[str, Any], after: dict[str, Any], seconds: float) -> str:
    """What happened between two `engine.stats()`, for a person."""
    if "hits" not in after:
        return f"{after['mode']}: the system keeps the weights in memory"

    def took(name: str) -> float:
        return float(after.get(name, 0) - before.get(name, 0))

    asked = took("hits") + took("misses")
    read, reading = took("disk_bytes"), took("read_seconds")
    stalled = took("stall_seconds") + took("dense_stall_seconds")
    parts = [
        f"experts {took('hits') / asked:.0%} of {asked:,.0f} in memory" if asked else "no experts asked for",
        f"read {read / 1e9:.2f} GB at {read / reading / 1e9:.1f} GB/s" if reading else "nothing read",
        f"waited {stalled:.2f} of {seconds:.2f} s",
        f"ahead {took('prefetch_useful'):.0f} used, {took('prefetch_wasted'):.0f} not",
        f"evicted {took('evictions'):.0f}",
    ]
    return " · ".join(parts)
