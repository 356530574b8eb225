"""The processor: what it is called, what it can do, and how much of it this process may use."""

import os
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from penstock.machine import macos
from penstock.machine.groups import find_groups
from penstock.machine.kernel_files import CGROUPS, PROC, SYS, number, text

# Those that decide how fast products of weights and activations are, on x86 and on ARM.
TELLING: Final = (
    *("avx2", "fma", "f16c", "avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16", "amx_int8", "amx_bf16"),
    *("asimd", "asimddp", "i8mm", "bf16", "sve", "sve2"),
)


@dataclass(frozen=True, slots=True)
class Cpu:
    """`cores` are those this process may run on; `quota` is how many of them at a time, None for all."""

    model: str
    cores: int
    quota: float | None
    instructions: tuple[str, ...]

    @property
    def usable(self) -> int:
        """How many threads can always run.  One more than the quota, and all of them are halted now and then."""
        return self.cores if self.quota is None else max(1, min(self.cores, int(self.quota)))


def read_cpu(proc: Path = PROC, cgroups: Path = CGROUPS) -> Cpu:
    if macos.HERE:
        return _apple_cpu()
    fields: dict[str, str] = {}
    for line in (text(proc / "cpuinfo") or "").splitlines():
        name, _, value = line.partition(":")
        fields.setdefault(name.strip(), value.strip())
    flags = set(fields.get("flags", fields.get("Features", "")).split())
    return Cpu(
        model=fields.get("model name") or platform.machine(),
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        quota=_quota(proc, cgroups),
        instructions=tuple(name for name in TELLING if name in flags),
    )


def cache_bytes(sys: Path = SYS) -> int:
    """Size of the largest CPU cache; 0 where the system does not say."""
    if macos.HERE:
        return max(macos.number(f"hw.{name}cachesize") or 0 for name in ("perflevel0.l2", "l2", "l3"))
    found = [0]
    for path in (sys / "devices" / "system" / "cpu" / "cpu0" / "cache").glob("index*/size"):
        size = text(path) or "0"
        unit = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(size[-1:], 1)
        found.append(int(size.rstrip("KMG")) * unit)
    return max(found)


def _apple_cpu() -> Cpu:
    """Its fast cores: work is cut into pieces for all threads alike, and slow ones would keep the others waiting."""
    optional = {
        "asimd": "AdvSIMD",
        "asimddp": "arm.FEAT_DotProd",
        "i8mm": "arm.FEAT_I8MM",
        "bf16": "arm.FEAT_BF16",
    }
    return Cpu(
        model=macos.text("machdep.cpu.brand_string") or platform.machine(),
        cores=macos.number("hw.perflevel0.logicalcpu") or os.cpu_count() or 1,
        quota=None,
        instructions=tuple(name for name, key in optional.items() if macos.number(f"hw.optional.{key}")),
    )


def _quota(proc: Path, cgroups: Path) -> float | None:
    """Cores that the strictest group grants."""
    groups = find_groups("cpu", proc, cgroups)
    granted = []
    for folder in groups.folders:
        if groups.version == 1:
            time, period = number(folder / "cpu.cfs_quota_us"), number(folder / "cpu.cfs_period_us")
        else:
            time, period = _pair(text(folder / "cpu.max"))
        if time is not None and period and time > 0:  # -1: no quota
            granted.append(time / period)
    return min(granted, default=None)


def _pair(line: str | None) -> tuple[int | None, int | None]:
    """ "150000 100000" → the two numbers; "max 100000" → none: no quota."""
    words = (line or "").split()
    if len(words) != 2 or not all(word.isdecimal() for word in words):
        return None, None
    return int(words[0]), int(words[1])
