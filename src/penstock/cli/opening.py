"""Opening a model for a command, with progress for those who wait."""

import logging
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.backend.device import DeviceBackend
from penstock.bench.tier_speed import expect_routing, expect_with, usual_pace
from penstock.cli import options
from penstock.engine.engine import Engine
from penstock.engine.options import EngineOptions
from penstock.engine.runner import Loading
from penstock.machine.gpu import read_gpus
from penstock.option import given
from penstock.sizes import size, speed
from penstock.storage.tiers.pace import noted

if TYPE_CHECKING:
    from rich.progress import Progress


def open_engine(model: Path | None, chosen: EngineOptions, *, load: bool = True) -> Engine:
    """The engine for the options that a command was given.  Loading, unless `load` is False, shows on a terminal."""
    if chosen.cluster is not None:
        _tell_of_workers()
    bar = LoadingBar()
    with warnings.catch_warnings(record=True) as noticed:
        try:
            path = model or options.default_model()
            engine = Engine(path, progress=bar.update, load=load, **given(chosen))
        finally:
            bar.stop()
    if isinstance(engine.backend, DeviceBackend) and (
        chosen.device == "auto" or engine.plan.tiers is not None
    ):
        print(f"penstock: {_where(engine, engine.backend)}", file=sys.stderr)
    for warning in noticed:  # in the form of an error, without the line of code that Python would add
        print(f"penstock: {warning.message}", file=sys.stderr)
    return engine


def _where(engine: Engine, device: DeviceBackend) -> str:
    """What is on the device, in one line."""
    plan, tiers = engine.plan, engine.plan.tiers
    if tiers is None:
        return f"the whole model fits {device.description}"
    held = plan.experts_held / plan.experts_total
    others = "in memory" if tiers.whole else f"in {size(tiers.held)} of memory and on disk"
    line = f"{held:.0%} of the experts fit {device.description}, the others are {others}"
    running = None if engine.parked else engine.storage.tiers
    bandwidth = max((card.bandwidth for card in read_gpus()[:1]), default=0.0)
    if running is None or not bandwidth:
        return line
    times, before = running.experts.division.times, noted(plan, device.description)
    pace = usual_pace(plan, bandwidth) if before is None else before[0]
    routing, _ = expect_routing(engine.checkpoint, plan, engine.options.learn == "on")
    expected = expect_with(engine.checkpoint, plan, times, pace, routing, engine.options.exact)
    return f"{line}; about {speed(expected.tokens_per_second)} tokens/s, bound by {expected.binds}"


def _tell_of_workers() -> None:
    """Who waits for workers sees who has come; a server's log says it anyway."""
    log = logging.getLogger("penstock.cluster")
    if not log.hasHandlers():
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("penstock: %(message)s"))
        log.addHandler(handler)
        log.setLevel(logging.INFO)


class LoadingBar:
    """How far loading is, on a terminal; it appears with the first news of that.  Elsewhere nothing is shown, and the
    library that would draw it is not imported."""

    def __init__(self) -> None:
        self._bar: Progress | None = None
        self._wanted = sys.stderr.isatty()

    def show(self, loading: Loading | None) -> None:
        """For an engine that somebody else loads: to be called now and then, until there is no more loading."""
        if loading is None:
            self.stop()
        else:
            self.update(loading.done, loading.total)

    def update(self, done: int, total: int) -> None:
        if self._wanted and self._bar is None:
            self._bar = _bar()
            self._bar.start()
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=done, total=total or None)

    def stop(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


def _bar() -> "Progress":
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (TextColumn("reading weights"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    bar = Progress(*columns, console=Console(stderr=True), transient=True)
    bar.add_task("", total=None)
    return bar
