"""One life of an engine: started on a cold page cache in a memory group of its own, given orders, ended."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.cgroup import MemoryGroup
from benchmarks.children import ChildError, EngineChild
from benchmarks.llamacpp_source import Source
from benchmarks.machine import Neighbours

Order = dict[str, Any]  # as `engine_worker` understands it
DROP_CACHES = Path("/proc/sys/vm/drop_caches")


@dataclass(frozen=True)
class Entrant:
    """One way to run a model."""

    name: str
    source: Source
    limit: int | None = None  # bytes that its process may use
    options: dict[str, Any] = field(default_factory=dict)  # of penstock.Engine
    grouped: bool = True  # in a memory group, to be limited or counted
    first: dict[str, Order] = field(default_factory=dict)  # obeyed before what all are told


class Setting(NamedTuple):
    """What all entrants have in common."""

    model: Path
    threads: int
    context: int
    first: int  # token id fed while starting


@dataclass(frozen=True)
class Trial:
    """What came of it.  `answers`: by the names of the orders."""

    entrant: str
    answers: dict[str, dict[str, Any]]
    start_s: float
    limit: int | None
    peak: int | None  # bytes; None outside a group
    at_limit: int | None
    refaults: int | None  # bytes
    neighbours: float  # cores that other processes kept busy meanwhile
    plan: dict[str, Any] = field(default_factory=dict)  # what Penstock says it keeps in memory
    between: list[float] = field(
        default_factory=list
    )  # measured before each order, while the engine was idle

    def cold(self, order: str) -> float:
        """Steps per second in the first half of an order."""
        steps = self.answers[order]["step_s"]
        half = len(steps) // 2
        return half / float(sum(steps[:half]))

    def steady(self, order: str) -> float:
        """Steps per second in the second half, when what can be cached is."""
        steps = self.answers[order]["step_s"]
        half = len(steps) // 2
        return (len(steps) - half) / float(sum(steps[half:]))


def forget(path: Path) -> str:
    """Empties the page cache of this file, and of all others if we may.  Says how."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)  # a page that was never written cannot be dropped
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)
    try:
        DROP_CACHES.write_text("1")
    except OSError:
        return "page cache of the file dropped (posix_fadvise); programs and libraries stay cached"
    return "whole page cache dropped (posix_fadvise and drop_caches)"


def hold(
    entrant: Entrant,
    setting: Setting,
    orders: dict[str, Order],
    between: Callable[[], float] | None = None,
) -> Trial:
    """Raises ChildError if the engine does not survive it."""
    forget(setting.model)
    others = Neighbours()
    with ExitStack() as stack:
        group = stack.enter_context(MemoryGroup(entrant.limit)) if entrant.grouped else None
        try:
            child = stack.enter_context(
                EngineChild(
                    entrant.source.python,
                    group=group,
                    engine=entrant.source.name,
                    model=setting.model,
                    threads=setting.threads,
                    context=setting.context,
                    repack=False,  # a second copy of the weights would only need more memory
                    first=setting.first,
                    options=entrant.options,
                )
            )
            answers, measured = {}, []
            for name, order in (entrant.first | orders).items():
                if between:
                    measured.append(between())
                answers[name] = child.ask(**order)
        except ChildError as error:
            if group and group.killed:
                raise ChildError(
                    f"{entrant.name}: its memory was not enough, the kernel killed it"
                ) from error
            raise
        child.close()  # so that its time counts as ours
        return Trial(
            entrant.name,
            answers,
            child.start_s,
            entrant.limit,
            group.peak if group else None,
            group.at_limit if group else None,
            group.refaults if group else None,
            others.cores(),
            child.first["plan"],
            measured,
        )


def in_turn(entrants: Sequence[Entrant], repeat: int) -> Iterator[Entrant]:
    """Everyone as often as said; who goes first changes."""
    for number in range(repeat):
        yield from entrants if number % 2 == 0 else reversed(entrants)
