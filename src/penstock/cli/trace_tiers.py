"""What `penstock trace replay --tiers` shows: a trace run again through a GPU's memory, RAM and disk."""

import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from rich.console import Console
from rich.table import Table

from penstock.backend.device import HOST_ROWS
from penstock.cli.trace import read_requests
from penstock.errors import OptionError
from penstock.sizes import parse_size, size
from penstock.storage.tiers.division import Division, Times
from penstock.storage.tiers.replay import divide_slots, experts_used, replay_tiers
from penstock.storage.trace import TraceHeader


def replay_in_tiers(file: Path, policies: Sequence[str], tiers: str, speeds: str, json_output: bool) -> None:
    trace = read_requests(file)
    vram, memory = _parse_tiers(tiers)
    times = _parse_speeds(speeds, trace.header)
    slots = divide_slots(trace.header, vram, experts_used(trace))
    whole = memory >= trace.header.total_bytes
    if not whole and memory < max(trace.header.block_bytes):
        raise OptionError(f"--tiers: {size(memory)} of memory cannot hold one expert")
    found = {
        policy: replay_tiers(trace, policy, slots, None if whole else memory, Division(times))
        for policy in policies
    }
    if json_output:
        given = {"vram": vram, "memory": memory, "slots": sum(each.count for each in slots)}
        print(json.dumps(given | {"policies": {name: counted.outcome for name, counted in found.items()}}))
        return
    console = Console(highlight=False)
    asked = len(trace.keys)
    console.print(f"{file}: {asked:,} uses of experts in {len(trace.steps):,} requests", markup=False)
    table = Table("policy", box=None)
    for column in ("on the GPU", "in memory", "from disk", "copied up", "by the CPU", "over the link"):
        table.add_column(column, justify="right")
    for policy, counted in found.items():
        shares = (counted.device_hits, counted.memory_hits, counted.disk_reads)
        done = (counted.copied + counted.passed, counted.on_host)
        cells = [f"{count / asked:.1%}" for count in (*shares, *done)]
        table.add_row(policy, *cells, size(counted.link_bytes))
    console.print(table)


def _parse_tiers(text: str) -> tuple[int, int]:
    words = text.split(",")
    if len(words) != 2:
        raise OptionError(f"--tiers is {text!r}, expected VRAM,MEMORY such as 12GiB,24GiB")
    vram, memory = (parse_size(word.strip(), "--tiers") for word in words)
    return vram, memory


def _parse_speeds(text: str, header: TraceHeader) -> Times:
    """Seconds of an average expert, from GB/s."""
    with suppress(ValueError):
        link, host, disk = (float(word) * 1e9 for word in text.split(","))
        if min(link, host, disk) > 0:
            nbytes = header.total_bytes / (header.experts * len(header.block_bytes))
            return Times(nbytes / link, tuple(rows * nbytes / host for rows in HOST_ROWS), nbytes / disk)
    raise OptionError(f"--speeds is {text!r}, expected LINK,CPU,DISK in GB/s such as 25,40,3")
