"""What a benchmark ran on, in words, and whether others were busy on it meanwhile."""

import os
import platform
import time
from collections.abc import Sequence
from pathlib import Path

TICK = os.sysconf("SC_CLK_TCK")


def describe() -> dict[str, str | int | float]:
    """CPU, cores this process may use, memory, system."""
    fields: dict[str, str] = {}
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        fields.setdefault(name.strip(), value.strip())
    flags = set(fields.get("flags", "").split())
    wide = [
        flag
        for flag in ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "avx_vnni", "amx_int8")
        if flag in flags
    ]
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    family = f"family {fields.get('cpu family', '?')} model {fields.get('model', '?')}"
    return {
        "cpu": f"{fields.get('model name', platform.machine())} ({family})",
        "cores": len(os.sched_getaffinity(0)),
        "instructions": " ".join(wide),
        "memory_gib": round(memory / 2**30, 1),
        "system": f"{platform.system()} {platform.release()}",
    }


def sentence() -> str:
    found = describe()
    return (
        f"{found['cpu']}, {found['cores']} cores, {found['instructions']}, "
        f"{found['memory_gib']} GiB, {found['system']}"
    )


class Neighbours:
    """How many cores processes other than ours kept busy since this object was made.

    Ours are this process, its children that have ended, and the living ones named by their ids.
    """

    def __init__(self, ours: Sequence[int] = ()):
        self._ours = ours
        self._begin = time.perf_counter(), _busy_s(), self._own_s()

    def cores(self) -> float:
        begin, busy, own = self._begin
        others = (_busy_s() - busy) - (self._own_s() - own)
        return max(0.0, others / (time.perf_counter() - begin))

    def _own_s(self) -> float:
        times = os.times()
        own = times.user + times.system + times.children_user + times.children_system
        for pid in self._ours:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            own += (int(fields[11]) + int(fields[12])) / TICK
        return own


def _busy_s() -> float:
    """Seconds that all cores together have been at work, the hypervisor's other guests included."""
    user, nice, system, _, _, irq, softirq, steal = map(
        int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
    )
    return (user + nice + system + irq + softirq + steal) / TICK
