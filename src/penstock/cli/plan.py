"""`penstock plan`: what goes where in a budget of memory, and how fast it should be, before anything is loaded."""

import json
import math
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from penstock.backend.base import DeviceBackend
from penstock.bench.bandwidth import read_bandwidth
from penstock.cli import options
from penstock.cli.inspect import size
from penstock.engine.options import EngineOptions
from penstock.engine.planning import choose_backend, make_engine_plan
from penstock.errors import OptionError
from penstock.machine.disk_speed import measured
from penstock.machine.memory import read_memory
from penstock.storage.plan import SLACK, Plan
from penstock.storage.policies import POLICIES
from penstock.storage.replay import replay
from penstock.storage.trace import read_trace
from penstock.weights.checkpoint import Checkpoint
from penstock.weights.layout import Role
from penstock.weights.opening import open_checkpoint
from penstock.weights.summary import roles

NOTABLE = 1.1  # of what a type takes in the file


@options.with_flags
def plan_command(
    chosen: EngineOptions,
    model: options.Model = None,
    trace: Annotated[
        Path | None, typer.Option(help="A recorded trace: expect its hit rate, not that of uniform routing.")
    ] = None,
    policy: Annotated[
        str, typer.Option(help="The policy to expect with a trace.", metavar="|".join(POLICIES))
    ] = "lfru",
    measure: Annotated[bool, typer.Option("--measure", help="Measure the disk again.")] = False,
    json_output: options.Json = False,
) -> None:
    """Show what a model would take from a budget of memory, and the speed to expect.

    Example: penstock plan -m model.gguf --memory 16GiB --ctx 32768
    """
    path = model or options.default_model()
    checkpoint = chosen.with_draft(open_checkpoint(path, chosen.mtp))
    backend = choose_backend(checkpoint, chosen)
    plan, tokens = make_engine_plan(checkpoint, chosen, backend, chosen.context)
    speeds: dict[str, Any] = {
        "memory_bandwidth": backend.speeds().memory
        if isinstance(backend, DeviceBackend)
        else read_bandwidth(chosen.thread_count, rounds=2),
        "disk_bandwidth": _disk_speed(checkpoint.files[0].path, measure),
    }
    hit_rate = plan.hit_rate()
    if trace is not None and plan.mode == "direct":
        found = replay(read_trace(trace), policy, plan.experts_held)
        hit_rate = found.hits / max(1, found.hits + found.misses)
    seconds = plan.seconds_per_token(speeds["memory_bandwidth"], speeds["disk_bandwidth"], hit_rate)
    if not math.isfinite(speeds["disk_bandwidth"]) and json_output:
        speeds["disk_bandwidth"] = None  # JSON has no word for it
    report = (
        plan.as_dict() | speeds | {"context": tokens, "hit_rate": hit_rate, "tokens_per_second": 1 / seconds}
    )
    if json_output:
        print(json.dumps(report))
        return
    console = Console(highlight=False)
    console.print(_places(plan, tokens))
    for line in _expectation(plan, report, trace is not None):
        console.print(line)
    if isinstance(backend, DeviceBackend):
        console.print(f"on {backend.description}: all of this is the GPU's memory")
        for line in _encoded_anew(checkpoint, backend):
            console.print(line)
        return
    room = read_memory().room
    if plan.total > room:
        console.print(f"[yellow]only {size(room)} are free now[/]")


def _encoded_anew(checkpoint: Checkpoint, backend: DeviceBackend) -> list[str]:
    """Types that a device stores otherwise than the file does, and what that costs."""
    stored: Counter[str] = Counter()
    there: Counter[str] = Counter()
    for name, role in roles(checkpoint).items():
        info = checkpoint.index[name]
        if len(info.shape) == 2 and role is not Role.HASH_TABLE and role is not Role.ROUTED:
            stored[info.kind.name] += info.total_bytes
            there[info.kind.name] += backend.weight_bytes(info)
    return [
        f"{kind}: {size(stored[kind])} in the file, {size(there[kind])} there"
        for kind in sorted(stored)
        if there[kind] > stored[kind] * NOTABLE
    ]


def _disk_speed(path: Path, again: bool) -> float:
    """Bytes per second; infinite where the model is too small to measure a disk with, which then hardly matters."""
    try:
        return measured(path, again).bytes_per_second
    except OptionError:
        return math.inf


def _places(plan: Plan, context: int) -> Table:
    table = Table(
        title=f"{plan.mode}, {size(plan.budget) if plan.budget else 'no limit'}", title_justify="left"
    )
    table.add_column("what")
    table.add_column("memory", justify="right")
    table.add_column("")
    blocks = f"{len(plan.streamed)} blocks take turns in two buffers" if plan.streamed else ""
    head = "output matrix in slices" if plan.slice_head else ""
    slots = plan.experts_held // plan.expert_bytes
    rows = [
        ("program", plan.base + SLACK, "interpreter, libraries, tokenizer, tables"),
        ("context", plan.state, f"state of one session of {context:,} tokens"),
        ("prefill", plan.work, f"{plan.chunk:,} tokens at a time"),
        ("weights of every token", plan.dense_held + plan.dense_buffers, f"of {size(plan.dense)}"),
        ("", None, "; ".join(part for part in (blocks, head) if part)),
        (
            "routed experts",
            plan.experts_held,
            f"of {size(plan.experts_total)}: {slots:,} of {size(plan.expert_bytes)}",
        ),
        ("read ahead", plan.ahead, f"{plan.ahead // plan.expert_bytes} experts"),
    ]
    for name, nbytes, note in rows:
        if nbytes != 0 and (nbytes is not None or note):
            table.add_row(name, "" if nbytes is None else size(nbytes), note)
    table.add_section()
    table.add_row("all", size(plan.total), f"the least that works is {size(plan.smallest)}")
    return table


def _expectation(plan: Plan, report: dict[str, Any], traced: bool) -> list[str]:
    whole = sum(plan.read_by_token.values())
    disk = report["disk_bandwidth"]
    speed = f"{disk / 1e9:.2f} GB/s" if math.isfinite(disk) else "not measured: the model is too small for it"
    lines = [f"memory {report['memory_bandwidth'] / 1e9:.1f} GB/s, disk {speed}; a token reads {size(whole)}"]
    if plan.mode == "direct":
        source = "by the trace" if traced else "if all are equally likely"
        from_disk = size(int(plan.disk_bytes(report["hit_rate"])))
        lines.append(f"hit rate {report['hit_rate']:.0%} {source}: {from_disk} of a token come from the disk")
    lines.append(
        f"expected: {report['tokens_per_second']:.2f} tokens/s = 1 / max(bytes of a token / memory, "
        "bytes from disk / disk)"
    )
    return lines
