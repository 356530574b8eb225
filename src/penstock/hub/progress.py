"""How far a download is, for whoever waits: a bar on a terminal, now and then a line elsewhere."""

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from penstock.sizes import disk_size

if TYPE_CHECKING:
    from rich.progress import Progress

EVERY: Final = 30.0  # seconds between lines where there is no terminal


class DownloadProgress:
    """Shown on stderr while it is open.

    with DownloadProgress("model.gguf", total=86_720_111_488, done=0) as shown:
        shown.advance(1 << 20)
    """

    def __init__(self, name: str, total: int, done: int):
        self.name, self.total, self.done = name, total, done
        self._begun_at, self._begin = done, time.monotonic()
        self._told = self._begin
        self._bar: Progress | None = None

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            self._bar = _bar()
            self._bar.add_task(self.name, total=self.total, completed=self.done)
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def name_file(self, name: str) -> None:
        self.name = name
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], description=name)

    def advance(self, nbytes: int) -> None:
        self.done += nbytes
        if self._bar is not None:
            self._bar.advance(self._bar.task_ids[0], nbytes)
        elif (now := time.monotonic()) - self._told >= EVERY:
            self._told = now
            print(self.line(now - self._begin), file=sys.stderr, flush=True)

    def found(self, nbytes: int) -> None:
        """So many bytes were here already: they say nothing about how fast the others come."""
        self.done += nbytes
        self._begun_at, self._begin = self.done, time.monotonic()
        if self._bar is not None:
            self._bar.reset(self._bar.task_ids[0], total=self.total, completed=self.done)

    def line(self, seconds: float) -> str:
        """Where it stands after so many seconds."""
        rate = (self.done - self._begun_at) / max(seconds, 1e-9)
        left = f", {_duration((self.total - self.done) / rate)} left" if rate > 0 else ""
        share = self.done / max(self.total, 1)
        return (
            f"penstock: {self.name}: {disk_size(self.done)} of {disk_size(self.total)} ({share:.0%}), "
            f"{rate / 1e6:.1f} MB/s{left}"
        )


def _duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}"


def _bar() -> "Progress":
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )
    from rich.table import Column

    name = TextColumn("{task.description}", markup=False, table_column=Column(max_width=40, no_wrap=True))
    columns = (name, BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    return Progress(*columns, console=Console(stderr=True), transient=True)
