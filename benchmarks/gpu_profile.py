"""Where a GPU's time goes: by kernel (`backend/cuda/profile.py`), with the weights that each reads."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple
from unittest import mock

from rich.table import Table

from penstock.backend.cuda.dense import Dense
from penstock.backend.cuda.experts import Down, Up
from penstock.backend.cuda.launch import Kernel
from penstock.backend.cuda.profile import Ran, charges
from penstock.backend.cuda.weights import Packed


class Launched(NamedTuple):
    kernel: str
    label: str  # with the first of its matrices
    nbytes: float  # of weights


@dataclass
class Line:
    """One kind of kernel in one repetition."""

    label: str
    launches: float = 0.0
    nbytes: float = 0.0
    seconds: float = 0.0


def experts_read(rows: int, used: int, experts: int) -> float:
    """How many different experts so many rows use, if every choice is as likely as any other."""
    return float(experts * (1 - (1 - used / experts) ** rows))


def _matrices(kept: object) -> Iterator[Packed]:
    if isinstance(kept, Packed):
        yield kept
    elif isinstance(kept, list | tuple):
        for each in kept:
            yield from _matrices(each)


@contextmanager
def launches(read: float) -> Iterator[list[Launched]]:
    """The launches of our kernels from here on, in order.  read: experts of a layer that are used"""
    found: list[Launched] = []
    owners: list[Any] = []
    launch = Kernel.launch

    def noted(kernel: Kernel, *arguments: Any, **named: Any) -> None:
        label, nbytes = kernel.name, 0.0
        if owners:
            matrices = list(_matrices(owners[-1]._keep))
            routed = not isinstance(owners[-1], Dense)
            nbytes = sum(m.nbytes * (read / m.count if routed and m.count > 1 else 1) for m in matrices)
            first, more = matrices[0], f" + {len(matrices) - 1}" if len(matrices) > 1 else ""
            label = f"{kernel.name} {first.kind.name} {first.rows}×{first.columns}{more}"
        found.append(Launched(kernel.name, label, nbytes))
        launch(kernel, *arguments, **named)

    def owned(owner: type) -> Any:
        inner: Any = owner.launch  # type: ignore[attr-defined]

        def outer(self: Any, *arguments: Any, **named: Any) -> None:
            owners.append(self)
            try:
                inner(self, *arguments, **named)
            finally:
                owners.pop()

        return mock.patch.object(owner, "launch", outer)

    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(Kernel, "launch", noted))
        for owner in (Dense, Up, Down):
            stack.enter_context(owned(owner))
        yield found


def by_kernel(ran: Sequence[Ran], launched: Sequence[Launched], repeats: int) -> list[Line]:
    """launched: our kernels of one repetition, or of all of them; others go by their own names"""
    ours = {each.kernel for each in launched}
    number = _begins([each.name for each in ran if each.name in ours], launched)
    lines: dict[str, Line] = {}
    for name, seconds in charges(ran):
        label, nbytes = name, 0.0
        if name in ours:
            each = launched[number % len(launched)]
            if each.kernel == name:  # else the order is another than was noted, and only the name is sure
                label, nbytes = each.label, each.nbytes
            number += 1
        line = lines.setdefault(label, Line(label))
        line.launches += 1 / repeats
        line.nbytes += nbytes / repeats
        line.seconds += seconds / repeats
    return sorted(lines.values(), key=lambda line: -line.seconds)


def _begins(names: Sequence[str], launched: Sequence[Launched]) -> int:
    """Where in a repetition the records begin: with a step that is begun early, not where a step does."""
    kernels = [each.kernel for each in launched]
    for first in range(len(kernels)):
        turned = kernels[first:] + kernels[:first]
        if turned == list(names[: len(turned)]):
            return first
    return 0


def table(title: str, lines: Sequence[Line], bandwidth: float) -> Table:
    """bandwidth: bytes per second of the card's memory"""
    total, nbytes = sum(line.seconds for line in lines), sum(line.nbytes for line in lines)
    shown = Table(title=title, title_justify="left", show_footer=True)
    columns = {
        "kernel": "all",
        "launches": f"{sum(line.launches for line in lines):,.0f}",
        "MB": f"{nbytes / 1e6:,.0f}",
        "ms": f"{total * 1e3:,.3f}",
        "time": "100 %",
        "TB/s": f"{nbytes / total / 1e12:.2f}" if total else "",
        "of bandwidth": f"{nbytes / bandwidth / total:.0%}" if total else "",
    }
    for name, footer in columns.items():
        shown.add_column(name, footer, justify="left" if name == "kernel" else "right")
    for line in lines:
        speed = line.nbytes / line.seconds if line.seconds else 0.0
        shown.add_row(
            line.label,
            f"{line.launches:,.0f}",
            f"{line.nbytes / 1e6:,.0f}" if line.nbytes else "",
            f"{line.seconds * 1e3:,.3f}",
            f"{line.seconds / total:.1%}",
            f"{speed / 1e12:.2f}" if line.nbytes else "",
            f"{speed / bandwidth:.0%}" if line.nbytes else "",
        )
    return shown
