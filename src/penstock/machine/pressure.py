"""Signs that memory is short: time lost waiting for it, and pages that had to be read again."""

import resource
from pathlib import Path
from typing import NamedTuple

from penstock.machine import macos
from penstock.machine.groups import find_groups
from penstock.machine.kernel_files import CGROUPS, PROC, counters, text


class Stall(NamedTuple):
    """Time lost: avg10 is per cent of the last ten seconds or so, total is microseconds since the start."""

    avg10: float
    total: int


class Pressure(NamedTuple):
    """The kernel's pressure stall information: some task waited for memory, or all of them did."""

    some: Stall
    full: Stall


class Paging(NamedTuple):
    """Counts since the start of this process or of the machine; None where the kernel does not count."""

    own_major_faults: int | None
    major_faults: int | None
    swap_ins: int | None


def machine_pressure(proc: Path = PROC) -> Pressure | None:
    """Of everything that runs here; None where the kernel has no such information."""
    return _parse(text(proc / "pressure" / "memory"))


def group_pressure(proc: Path = PROC, cgroups: Path = CGROUPS) -> Pressure | None:
    """Of this process's own control group; None for the first version and for the outermost group."""
    groups = find_groups("memory", proc, cgroups)
    return _parse(text(groups.folders[0] / "memory.pressure")) if groups.version == 2 else None


def read_paging(proc: Path = PROC) -> Paging:
    """How often pages had to be read from a disk so far."""
    if macos.HERE:
        pages, own_faults = macos.pages(), resource.getrusage(resource.RUSAGE_SELF).ru_majflt
        return Paging(own_faults, pages.page_ins, pages.swap_ins) if pages else Paging(own_faults, None, None)
    # The name of a program may contain spaces and brackets; what follows it does not.
    fields = (text(proc / "self" / "stat") or "").rpartition(")")[2].split()
    counted = counters(proc / "vmstat")
    own = int(fields[9]) if len(fields) > 9 and fields[9].isdecimal() else None
    return Paging(own, counted.get("pgmajfault"), counted.get("pswpin"))


def _parse(content: str | None) -> Pressure | None:
    """Two lines such as "some avg10=0.00 avg60=0.00 avg300=0.00 total=0"."""
    stalls = {}
    for line in (content or "").splitlines():
        kind, *pairs = line.split()
        values = dict(pair.split("=", 1) for pair in pairs if "=" in pair)
        try:
            stalls[kind] = Stall(float(values["avg10"]), int(values["total"]))
        except (KeyError, ValueError):
            return None
    return Pressure(stalls["some"], stalls["full"]) if {"some", "full"} <= stalls.keys() else None
