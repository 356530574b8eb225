"""What `penstock doctor` looks at: whether this machine is ready, and what would make it faster."""

import json
import os
import platform
import re
import resource
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from penstock.backend import open_backend
from penstock.backend.device import DeviceBackend, DeviceSpeeds
from penstock.bench.verdict import Verdict, judge_model
from penstock.cli.inspect import describe
from penstock.engine.options import EngineOptions
from penstock.engine.planning import choose_backend
from penstock.errors import OptionError, PenstockError
from penstock.hub.find import find_model
from penstock.machine import macos
from penstock.machine.cpu import Cpu, read_cpu
from penstock.machine.disk import IN_MEMORY, OVER_A_NETWORK, Disk, find_disk, open_direct
from penstock.machine.disk_speed import SMALLEST_FILE, Measured, measured
from penstock.machine.gpu import OLDEST, Gpu, read_gpu_memory, read_gpus
from penstock.machine.kernel_files import SYS, text
from penstock.machine.memory import Memory, read_memory
from penstock.machine.pressure import Pressure, group_pressure, machine_pressure
from penstock.native.library import instruction_set
from penstock.sizes import size
from penstock.weights.checkpoint import Checkpoint
from penstock.weights.opening import open_checkpoint

PYTHON: Final = (3, 11)
LITTLE_MEMORY: Final = 4 << 30  # less than what the published models have outside their experts
FEW_FILES: Final = 1024
LITTLE_SPACE: Final = 1 << 30  # a saved session of a long conversation
SLOW_DISK: Final = 500e6  # bytes per second, about what a disk on a SATA cable reads


class Status(StrEnum):
    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


COLOURS: Final = {Status.OK: "green", Status.WARNING: "yellow", Status.PROBLEM: "red"}


@dataclass(frozen=True, slots=True)
class Check:
    """What was looked at, what was found in words and in numbers, and what to do about it."""

    name: str
    status: Status
    found: str
    advice: str
    facts: dict[str, Any]


def judge(name: str, found: str, /, problem: str = "", warning: str = "", **facts: Any) -> Check:
    """A check that ends with the worst thing there is to say; nothing to say is good."""
    status = Status.PROBLEM if problem else Status.WARNING if warning else Status.OK
    return Check(name, status, found, problem or warning, facts)


def examine_machine(model: Path | None, measure: bool, json_output: bool) -> bool:
    """Whether all can work."""
    checkpoint = None if model is None else open_checkpoint(find_model(model, download=False))
    with Console(stderr=True).status("looking around …"):  # shown only on a terminal
        checks = list(examine(None if checkpoint is None else describe(checkpoint), measure))
    healthy = all(check.status is not Status.PROBLEM for check in checks)
    verdict = None if checkpoint is None or not healthy else _verdict(checkpoint, measure)
    if json_output:
        found = {"ok": healthy, "checks": [asdict(check) for check in checks]}
        print(json.dumps(found if verdict is None else found | {"verdict": verdict.as_dict()}))
    else:
        console = Console(highlight=False)
        console.print(_table(checks))
        if verdict is not None:
            console.print(f"\n{' '.join(verdict.sentences)}", markup=False)
    return healthy and (verdict is None or verdict.fits != "not")


def _verdict(checkpoint: Checkpoint, again: bool) -> Verdict:
    """As a command would run the model that is told nothing else."""
    chosen = EngineOptions(draft="off")
    model, say = chosen.with_draft(checkpoint), partial(print, file=sys.stderr)
    return judge_model(model, chosen, choose_backend(model, chosen), again=again, say=say)


def examine(model: dict[str, Any] | None, measure: bool) -> Iterator[Check]:
    """model: what `describe` says of one."""
    yield check_python()
    yield check_kernels()
    yield check_cpu(read_cpu())
    yield check_memory(read_memory(), 0 if model is None else model["resident_bytes"])
    yield check_pressure(group_pressure() or machine_pressure())
    yield check_limits()
    if not macos.HERE:  # where the system alone decides
        yield check_large_pages(text(SYS / "kernel" / "mm" / "transparent_hugepage" / "enabled"))
    file = _largest(Path.cwd().iterdir() if model is None else map(Path, model["files"]))
    yield check_disk(find_disk(file or Path.cwd()), None if file is None else _is_direct(file))
    yield check_speed(
        file or Path.cwd(), measure, 0 if model is None else model["streamable"]["bytes_per_token"]
    )
    yield check_gpu(read_gpus(), _gpu_speeds)


def _table(checks: list[Check]) -> Table:
    table = Table(show_header=False, box=None)
    for check in checks:
        found = Text(check.found)
        if check.advice:
            found.append(f"\n→ {check.advice}", "bold")
        table.add_row(Text(check.status, COLOURS[check.status]), check.name, found)
    return table


# ── software ──────────────────────────────────────────────────────────────────────────────────────────────────


def check_python() -> Check:
    version = platform.python_version()
    needed = ".".join(map(str, PYTHON))
    old = f"Python {needed} or newer is needed" if sys.version_info < PYTHON else ""
    return judge(
        "python", f"{version} on {platform.system()} {platform.release()}", problem=old, version=version
    )


def check_kernels() -> Check:
    try:
        found = instruction_set()
    except PenstockError as error:
        what, _, advice = str(error).partition("\n")
        return judge("native kernels", what, problem=" ".join(advice.split()) or "see the message")
    slow = "products run without vector instructions, many times slower" if found == "scalar" else ""
    return judge("native kernels", f"present, running on {found}", warning=slow, instruction_set=found)


# ── processor and memory ──────────────────────────────────────────────────────────────────────────────────────


def check_cpu(cpu: Cpu) -> Check:
    cores = f"{cpu.cores} core{'s' * (cpu.cores > 1)}"
    quota = "" if cpu.quota is None else f", a quota of {cpu.quota:g}"
    return judge(
        "processor",
        f"{cpu.model}, {cores}{quota}; {' '.join(cpu.instructions) or 'no vector instructions known'}",
        warning=f"use --threads {cpu.usable}: more would be halted by the quota"
        if cpu.usable < cpu.cores
        else "",
        **asdict(cpu),
    )


def check_memory(memory: Memory, resident: int = 0) -> Check:
    """resident: bytes of the model that every token needs."""
    budget, group = memory.safe_budget(), memory.tightest
    limit = "" if group is None else f", limited to {size(group.limit)} by a control group"
    swap = size(memory.swap) if memory.swap else "none"
    if resident:
        advice = f"{size(resident)} of this model serve every token and would come from the disk each time"
        little = advice if resident > budget else ""
    else:
        advice = "little for a large model: close other programs, or raise the limit"
        little = advice if budget < LITTLE_MEMORY else ""
    return judge(
        "memory",
        f"{size(memory.available)} of {size(memory.total)} available{limit}, swap {swap}; {size(budget)} to use",
        warning=little,
        total=memory.total,
        available=memory.available,
        swap=memory.swap,
        limit=None if group is None else group.limit,
        budget=budget,
    )


def check_pressure(pressure: Pressure | None) -> Check:
    if pressure is None:
        advice = "--memory auto goes by page faults alone; a kernel with PSI (boot option psi=1) tells more"
        return judge("memory pressure", "not told by this kernel", warning=advice)
    return judge(
        "memory pressure",
        f"told by the kernel; tasks waited {pressure.some.avg10:g} % of the last ten seconds",
        warning="memory is short right now: close other programs" if pressure.some.avg10 > 10 else "",
        some_avg10=pressure.some.avg10,
        full_avg10=pressure.full.avg10,
    )


def check_limits() -> Check:
    files, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    locked, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    no_limit = resource.RLIM_INFINITY
    few = f"a server may run out of them: ulimit -n {4 * FEW_FILES}" if 0 <= files < FEW_FILES else ""
    return judge(
        "limits",
        f"{'any number of' if files == no_limit else f'{files:,}'} open files, "
        f"{'any' if locked == no_limit else size(locked)} locked memory",
        warning=few,
        open_files=files,
        open_files_hard=most_files,
        locked_memory=locked,
    )


def check_large_pages(setting: str | None) -> Check:
    """setting: such as "always [madvise] never"."""
    chosen = re.search(r"\[(\w+)\]", setting or "")
    found = chosen[1] if chosen else "not offered by this kernel"
    off = "weights stream slower from memory: echo madvise > /sys/kernel/mm/transparent_hugepage/enabled"
    return judge(
        "large pages",
        found,
        warning="" if found in ("always", "madvise") else off,
        setting=chosen and chosen[1],
    )


# ── disk ──────────────────────────────────────────────────────────────────────────────────────────────────────


def check_disk(disk: Disk, direct: bool | None) -> Check:
    """direct: whether reads can go past the page cache; None where there was no file to try."""
    tried = {True: "direct reads work", False: "no direct reads", None: "direct reads not tried"}[direct]
    advice = ""
    if disk.filesystem in IN_MEMORY:
        advice = "a model here takes memory twice: put it on a disk"
    elif disk.filesystem in OVER_A_NETWORK:
        advice = "experts are read all the time: a disk in this machine is faster"
    elif direct is False:
        advice = "reads go through the page cache and push other things out: ext4, XFS and btrfs do without"
    elif disk.free < LITTLE_SPACE:
        advice = "little space for saved sessions"
    return judge(
        "disk",
        f"{disk.mount} ({disk.name}): {disk.kind}, {disk.filesystem}, {size(disk.free)} free, {tried}",
        warning=advice,
        **{**asdict(disk), "mount": str(disk.mount)},
        kind=disk.kind,
        direct=direct,
    )


def check_speed(path: Path, again: bool, bytes_per_token: int = 0) -> Check:
    """bytes_per_token: experts that a token needs, all of them from the disk at worst."""
    try:
        return judge_speed(measured(path, again), bytes_per_token)
    except OptionError:
        missing = f"not measured: that takes a file of {size(SMALLEST_FILE)} or more; -m names one"
        return judge("disk speed", missing)
    except PenstockError as error:
        return judge("disk speed", str(error), problem="the disk or the connection to it may be failing")


def judge_speed(found: Measured, bytes_per_token: int = 0) -> Check:
    speed = found.bytes_per_second
    day = time.strftime("%Y-%m-%d", time.localtime(found.when))
    worst = (
        f"; {bytes_per_token / speed:.2g} s per token if no expert were in memory" if bytes_per_token else ""
    )
    return judge(
        "disk speed",
        f"{speed / 1e9:.2f} GB/s{f' (measured on {day})' if found.cached else ''}{worst}",
        warning="experts will come slowly: an NVMe disk reads several GB/s" if speed < SLOW_DISK else "",
        **found._asdict(),
    )


def _largest(paths: Iterable[Path]) -> Path | None:
    try:
        files = [path for path in paths if path.is_file() and os.access(path, os.R_OK)]
        return max(files, key=lambda path: path.stat().st_size, default=None)
    except OSError:  # a folder that may not be looked into, or a file that has just gone
        return None


def _is_direct(file: Path) -> bool | None:
    try:
        fd, direct = open_direct(file)
    except OSError:
        return None
    os.close(fd)
    return direct


# ── accelerator ───────────────────────────────────────────────────────────────────────────────────────────────


def check_gpu(cards: Sequence[Gpu], measure: Callable[[], DeviceSpeeds]) -> Check:
    """measure: how fast the first card's memory and the way to it are"""
    if not cards:
        return judge("gpu", "none found: the CPU does the work")
    described = []
    for card in cards:
        memory = read_gpu_memory(card.number)
        free = "" if memory is None else f", {size(memory.free)} of {size(memory.total)} free"
        major, minor = card.capability
        described.append(f"{card.name}{free}, compute capability {major}.{minor}, CUDA {card.driver}")
    found, facts = "; ".join(described), [card._asdict() for card in cards]
    missing = [name for name in ("torch", "cuda") if find_spec(name) is None]
    if missing:
        return judge("gpu", found, warning="not used: `pip install penstock[cuda]` is missing", cards=facts)
    if cards[0].capability < OLDEST:
        least = ".".join(map(str, OLDEST))
        return judge(
            "gpu", found, warning=f"not used: the kernels need compute capability {least}", cards=facts
        )
    try:
        speeds = measure()
    except PenstockError as error:
        return judge("gpu", found, warning=f"not usable: {error}", cards=facts)
    rates = f"; memory {speeds.memory / 1e12:.2f} TB/s, from the host {speeds.from_host / 1e9:.1f} GB/s"
    return judge("gpu", found + rates, cards=facts, **speeds._asdict())


def _gpu_speeds() -> DeviceSpeeds:
    backend = open_backend("cuda", threads=1)
    assert isinstance(backend, DeviceBackend)
    return backend.speeds()
