"""What an expert takes over the link and on the processors, each alone and both at a time: a case of
`benchmarks/tiers.py`."""

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

from penstock import Engine
from penstock.backend.base import HostExpert
from penstock.backend.cpu.backend import CpuBackend
from penstock.backend.cpu.host_share import expert_work
from penstock.backend.cpu.weights import CpuExpert
from penstock.backend.device import DeviceBackend
from penstock.storage.tiers.division import Times


def measure_parts(engine: Engine) -> dict[str, Any]:
    """Microseconds"""
    tiers, backend = engine.storage.tiers, engine.backend
    assert tiers is not None
    assert isinstance(backend, DeviceBackend)
    store, processors = tiers.experts, backend.beside
    assert isinstance(processors, CpuBackend)
    slots, there = store.pools[0].slots, dict(sorted(store.pools[0].placement.slot_of.items())[:40])

    def copy(experts: Sequence[HostExpert]) -> None:
        for slot, expert in zip(there.values(), experts, strict=True):  # once more to where they are
            slots.bring(slot, expert)

    def timed(work: Callable[[], object]) -> float:
        begin = time.perf_counter()
        work()
        return time.perf_counter() - begin

    found: dict[str, Any] = {"as measured": [round(each * 1e6, 1) for each in _flat(store.division.times)]}
    with store.host.sample(list(there)) as experts:
        copy(experts)
        slots.wait()
        issue = timed(lambda: copy(experts))
        slots.wait()
        found["asked_us"] = round(issue / len(experts) * 1e6, 1)
        begin = time.perf_counter()
        copy(experts)
        slots.wait()
        found["link_us"] = round((time.perf_counter() - begin) / len(experts) * 1e6, 1)
        for run in (1, 2, 4):
            groups = [experts[first : first + run] for first in range(0, len(experts) - run + 1, run)]
            begin = time.perf_counter()
            for number, group in enumerate(groups):
                slots.bring_all(list(there.values())[number * run : (number + 1) * run], group)
            slots.wait()
            found[f"link_us, {run} together"] = round(
                (time.perf_counter() - begin) / run / len(groups) * 1e6, 1
            )
        own = [expert for expert in experts if isinstance(expert, CpuExpert)]
        threads = processors.threads
        for count in (1, 2, 4):
            for used in sorted({threads, threads * 3 // 4, threads // 2}):
                works = expert_work(own, 1, count, used)
                works[0]()
                alone = statistics.median(timed(work) for work in works) / count
                copy(experts)
                both = statistics.median(timed(work) for work in works[: 20 // count]) / count
                slots.wait()
                found[f"{count} by {used} threads"] = [round(alone * 1e6, 1), round(both * 1e6, 1)]
    return found


def _flat(times: Times) -> list[float]:
    """Link, call, then the host by rows."""
    return [times.link, times.call, *times.host]
