"""`penstock plan`: what goes where in a budget of memory, and how fast it should be, before anything is loaded."""

import json
import sys
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from penstock.backend import open_backend
from penstock.backend.base import DeviceBackend
from penstock.bench.budgets import COLUMNS, Budget, budgets
from penstock.bench.device_speed import OnDevice, expect_on_device
from penstock.bench.expected import Expected, expect_here
from penstock.cli import options
from penstock.engine.opening import open_model
from penstock.engine.options import EngineOptions
from penstock.engine.planning import choose_backend, make_engine_plan
from penstock.errors import OptionError
from penstock.machine.memory import read_memory
from penstock.sizes import parse_size, size
from penstock.storage.plan import RESERVED, SLACK, Plan
from penstock.storage.policies import POLICIES
from penstock.storage.trace import read_trace
from penstock.weights.checkpoint import Checkpoint
from penstock.weights.layout import Role
from penstock.weights.summary import roles

NOTABLE = 1.1  # of what a type takes in the file


@options.with_flags
def plan_command(
    chosen: EngineOptions,
    model: options.Model = None,
    trace: Annotated[
        Path | None, typer.Option(help="A recorded trace: expect what it asked for, not what was learned.")
    ] = None,
    policy: Annotated[
        str, typer.Option(help="The policy to expect with a trace.", metavar="|".join(POLICIES))
    ] = "lfru",
    several: Annotated[
        str, typer.Option("--budgets", help="Compare these amounts of memory, such as 4GiB,8GiB,16GiB.")
    ] = "",
    measure: Annotated[
        bool, typer.Option("--measure", help="Measure this machine and its disk again.")
    ] = False,
    json_output: options.Json = False,
) -> None:
    """Show what a model would take from a budget of memory, and the speed to expect.

    Example: penstock plan -m model.gguf --memory 16GiB --ctx 32768
    """
    checkpoint = open_model(model or options.default_model(), chosen, download=False)
    say = partial(print, file=sys.stderr)
    if several:
        if chosen.device.startswith("cuda"):
            raise OptionError(
                f"--budgets compares amounts of the machine's memory; device is {chosen.device!r}"
            )
        amounts = [parse_size(each, "--budgets") for each in several.split(",")]
        processor = open_backend("cpu", chosen.thread_count)
        _compare(list(budgets(checkpoint, chosen, processor, amounts, say=say)), json_output)
        return
    backend = choose_backend(checkpoint, chosen)
    plan, tokens = make_engine_plan(checkpoint, chosen, backend, chosen.context)
    if isinstance(backend, DeviceBackend):
        _on_device(checkpoint, backend, plan, tokens, json_output)
        return
    expected = expect_here(
        checkpoint,
        plan,
        backend,
        learned=chosen.learn == "on",
        trace=None if trace is None else read_trace(trace),
        policy=policy,
        again=measure,
        say=say,
    )
    if json_output:
        print(json.dumps(plan.as_dict() | {"context": tokens} | expected.as_dict()))
        return
    console = Console(highlight=False, soft_wrap=True)
    console.print(_places(plan, tokens, chosen.context is not None))
    for line in _expectation(plan, expected):
        console.print(line)
    room = read_memory().room
    if plan.total > room:
        console.print(f"[yellow]only {size(room)} are free now[/]")


def _compare(found: Sequence[Budget], json_output: bool) -> None:
    if json_output:
        print(json.dumps([each.as_dict() for each in found]))
        return
    table = Table()
    for column in COLUMNS:
        table.add_column(column, justify="right")
    for each in found:
        table.add_row(*each.cells())
    Console(highlight=False).print(table)


def _on_device(
    checkpoint: Checkpoint, backend: DeviceBackend, plan: Plan, context: int, json_output: bool
) -> None:
    expected = expect_on_device(plan, backend)
    if json_output:
        print(json.dumps(plan.as_dict() | {"context": context} | expected._asdict()))
        return
    console = Console(highlight=False, soft_wrap=True)
    console.print(_places(plan, context, True))
    for line in [*_device_expectation(plan, backend, expected), *_encoded_anew(checkpoint, backend)]:
        console.print(line, markup=False)


def _device_expectation(plan: Plan, backend: DeviceBackend, expected: OnDevice) -> list[str]:
    whole = size(sum(plan.read_by_token.values()))
    return [
        f"on {backend.description}: all of this is the GPU's memory",
        f"memory {expected.memory_bandwidth / 1e9:.1f} GB/s; a token reads {whole}",
        f"expected decode: {expected.tokens_per_second:.3g} tokens/s at most, as fast as a token is read",
    ]


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


def _places(plan: Plan, context: int, asked: bool) -> Table:
    """asked: whether all of the context has its place, because it was asked for or experts do not give way."""
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
        ("context", plan.state, _context(plan, context, asked)),
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


def _context(plan: Plan, context: int, asked: bool) -> str:
    if asked or plan.budget is None or context <= RESERVED:
        return f"state of one session of {context:,} tokens"
    return f"{RESERVED:,} tokens; up to {context:,}, for which weights give way"


def _expectation(plan: Plan, expected: Expected) -> list[str]:
    whole = sum(plan.read_by_token.values())
    disk, steady, first = expected.disk, expected.steady, expected.first
    lines = [
        f"memory {expected.memory_bandwidth / 1e9:.1f} GB/s, disk {disk.bytes_per_second / 1e9:.2f} GB/s; "
        f"a token reads {size(whole)}"
    ]
    if plan.mode == "direct":
        read = size(steady.disk_bytes / steady.tokens)
        lines.append(f"hit rate {steady.hit_rate:.0%} {expected.basis}: {read} of a token come from the disk")
    elif expected.absent.nbytes:
        coming = f"{size(expected.absent.nbytes)} are not in memory yet"
        lines.append(f"{coming} and come with the first prompt, in about {expected.absent.seconds:.2g} s")
    parts = {
        "dense": "weights of every token",
        "experts": "experts",
        "logits": "logits",
        "disk": "waiting for the disk",
    }
    times = [f"{1e3 * expected.token_seconds[name]:.3g} ms {what}" for name, what in parts.items()]
    lines.append(f"time of a token: {', '.join(times)}")
    later = (
        ""
        if first.per_second > 0.95 * steady.per_second
        else f", {steady.per_second:.3g} once the cache is full"
    )
    lines.append(f"expected decode: {first.per_second:.3g} tokens/s{later}")
    prompts = [
        f"{phase.per_second:.3g} tokens/s for {n:,} tokens" for n, phase in sorted(expected.prompts.items())
    ]
    lines.append(f"expected prefill: {', '.join(prompts)}")
    return lines
