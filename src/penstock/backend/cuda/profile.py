"""What the card did and for how long, from the driver's own records.

Kernels overlap: the next one starts while the last still runs, and waits.  So a kernel is charged from the end of the
one before it to its own end, and the charges add up to the time that passed.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import torch
from torch.profiler import ProfilerActivity

from penstock.backend.device import KernelTime

IDLE: Final = "(nothing)"


class Ran(NamedTuple):
    """A kernel or a copy, in nanoseconds."""

    name: str
    start: int
    end: int


def record(work: Callable[[], object]) -> list[Ran]:
    """What the card did for `work`, in the order in which it began.  It is done twice: records cost time at first."""
    for _ in range(2):
        with torch.profiler.profile(activities=[ProfilerActivity.CUDA], acc_events=True) as records:
            work()
            torch.cuda.synchronize()
    profiler: Any = records.profiler
    events = [
        Ran(short_name(event.name()), event.start_ns(), event.end_ns())
        for event in profiler.kineto_results.events()
        if event.device_type().name == "CUDA"
    ]
    return sorted(events, key=lambda ran: (ran.start, ran.end))


def short_name(name: str) -> str:
    """Without what a template was made of, and without arguments.

    >>> short_name("void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<int>>(int)")
    'vectorized_elementwise_kernel'
    """
    plain = name.replace("(anonymous namespace)::", "")
    found = plain.split("<")[0].split("(")[0].removeprefix("void ").split("::")[-1].strip()
    return found or name


def charges(ran: Sequence[Ran]) -> Iterator[tuple[str, float]]:
    """Names and seconds, in order; `IDLE` where there was nothing to do."""
    last = ran[0].start if ran else 0
    for each in ran:
        if each.start > last:
            yield IDLE, (each.start - last) / 1e9
        yield each.name, max(0, each.end - max(last, each.start)) / 1e9
        last = max(last, each.end)


def by_name(ran: Sequence[Ran]) -> list[KernelTime]:
    """Most time first."""
    found: dict[str, KernelTime] = {}
    for name, seconds in charges(ran):
        before = found.get(name, KernelTime(name, 0, 0.0))
        found[name] = KernelTime(name, before.launches + 1, before.seconds + seconds)
    return sorted(found.values(), key=lambda kernel: -kernel.seconds)
