"""What `penstock plan` shows: places in memory, and the speed to expect."""

import json
import sys
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.table import Table

from penstock.backend import open_backend
from penstock.backend.device import DeviceBackend
from penstock.bench.budgets import COLUMNS, budgets
from penstock.bench.device_speed import OnDevice, expect_on_device
from penstock.bench.expected import Expected, expect_here
from penstock.bench.tier_speed import InTiers, expect_in_tiers
from penstock.engine.opening import open_model
from penstock.engine.options import EngineOptions
from penstock.engine.planning import choose_backend, plan_engine
from penstock.machine.memory import read_memory
from penstock.sizes import size, speed
from penstock.storage.device_plan import BY_ROW
from penstock.storage.plan import RESERVED, SLACK, Plan
from penstock.storage.trace import read_trace
from penstock.weights.checkpoint import Checkpoint
from penstock.weights.layout import Role
from penstock.weights.summary import roles

NOTABLE = 1.1  # of what a type takes in the file
NEARLY = 0.95  # of a speed, from which on it counts as the same
NOTICED = 0.1  # seconds that a person would see go by
SPREAD = 1.35  # times as fast at best as at worst, from which on both are said
_SAY = partial(print, file=sys.stderr)


def show_plan(
    path: Path, chosen: EngineOptions, trace: Path | None, policy: str, measure: bool, json_output: bool
) -> None:
    recorded = None if trace is None else read_trace(trace)
    checkpoint = open_model(path, chosen, download=False)
    backend = choose_backend(checkpoint, chosen)
    checkpoint, plan, tokens = plan_engine(checkpoint, chosen, backend, chosen.context)
    if isinstance(backend, DeviceBackend):
        if plan.tiers is None:
            _on_device(checkpoint, backend, plan, tokens, json_output)
        else:
            found = expect_in_tiers(checkpoint, plan, backend, chosen, again=measure, say=_SAY)
            _in_tiers(backend, plan, tokens, found, chosen.context is not None, json_output)
        return
    expected = expect_here(
        checkpoint,
        plan,
        backend,
        learned=chosen.learn == "on",
        trace=recorded,
        policy=policy,
        again=measure,
        say=_SAY,
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


def compare_budgets(path: Path, chosen: EngineOptions, amounts: Sequence[int], json_output: bool) -> None:
    checkpoint = open_model(path, chosen, download=False)
    processor = open_backend("cpu", chosen.thread_count)
    found = list(budgets(checkpoint, chosen, processor, amounts, say=_SAY))
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


def _in_tiers(
    backend: DeviceBackend, plan: Plan, context: int, expected: InTiers, asked: bool, json_output: bool
) -> None:
    if json_output:
        print(json.dumps(plan.as_dict() | {"context": context} | expected.as_dict()))
        return
    tiers, console = plan.tiers, Console(highlight=False, soft_wrap=True)
    assert tiers is not None
    console.print(_places(plan, context, asked))
    disk = 1 - expected.device - expected.memory
    table = Table(title=f"where a token's experts are, {expected.basis}", title_justify="left")
    for column in ("tier", "bytes", "found there"):
        table.add_column(column, justify="left" if column == "tier" else "right")
    table.add_row(backend.description, size(plan.experts_held), f"{expected.device:.0%}")
    held = size(plan.experts_total if tiers.whole else tiers.held)
    table.add_row("memory, in the mapped file" if tiers.whole else "memory", held, f"{expected.memory:.0%}")
    table.add_row("disk", size(plan.experts_total), f"{disk:.0%}")
    console.print(table)
    busy = ", ".join(
        f"{name} {1e3 * seconds:.3g} ms" for name, seconds in expected.seconds.items() if seconds
    )
    console.print(f"busy with a token, side by side: {busy}", markup=False)
    times = "as an earlier run measured" if expected.measured else "with usual times until a run has measured"
    console.print(
        f"expected decode: {speed(expected.tokens_per_second)} tokens/s, bound by {expected.binds}, {times}; "
        f"prompts of {plan.chunk:,} tokens and more: {speed(expected.prefill_tokens_per_second)} tokens/s at most",
        markup=False,
    )
    if tiers.budget is not None:
        console.print(f"host: {size(tiers.total)} of {size(tiers.budget)}, {size(tiers.smallest)} at least")


def _device_expectation(plan: Plan, backend: DeviceBackend, expected: OnDevice) -> list[str]:
    whole = size(sum(plan.read_by_token.values()))
    return [
        f"on {backend.description}: all of this is the GPU's memory",
        f"memory {expected.memory_bandwidth / 1e9:.1f} GB/s; a token reads {whole}",
        f"expected decode: {speed(expected.tokens_per_second)} tokens/s at most, as fast as a token is read",
    ]


def _encoded_anew(checkpoint: Checkpoint, backend: DeviceBackend) -> list[str]:
    """Types that a device stores otherwise than the file does, and what that costs."""
    stored: Counter[str] = Counter()
    there: Counter[str] = Counter()
    for name, role in roles(checkpoint).items():
        info = checkpoint.index[name]
        if len(info.shape) == 2 and role is not Role.HASH_TABLE and role is not Role.ROUTED:
            stored[info.kind.name] += info.total_bytes
            there[info.kind.name] += backend.weight_bytes(info, name.endswith(BY_ROW))
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
        (
            "read ahead",
            plan.ahead,
            f"{(count := plan.ahead // plan.expert_bytes)} expert{'s' * (count != 1)}",
        ),
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


def _decode(expected: Expected) -> str:
    """Tokens per second, and where a cache that has to fill first makes them others."""
    usual, shortest = expected.first.per_second, min(expected.answers)
    short, full = expected.answers[shortest].per_second, expected.steady.per_second
    said = f"{speed(usual)} tokens/s"
    if short < NEARLY * usual:
        said += f" after a prompt of {expected.prefill.tokens} tokens, {speed(short)} after one of {shortest}"
    return said + (f", {speed(full)} once the cache is full" if usual < NEARLY * full else "")


def _expectation(plan: Plan, expected: Expected) -> list[str]:
    whole = sum(plan.read_by_token.values())
    disk, steady = expected.disk, expected.steady
    cold = 1 / (1 / disk.bytes_per_second + disk.cold)
    first = f", {cold / 1e9:.2f} the first time" if cold < disk.bytes_per_second / SPREAD else ""
    lines = [
        f"memory {expected.memory_bandwidth / 1e9:.1f} GB/s, disk {disk.bytes_per_second / 1e9:.2f} GB/s "
        f"in reads of an expert{first}; a token reads {size(whole)}"
    ]
    if plan.mode == "direct":
        read = size(steady.disk_bytes / steady.tokens)
        lines.append(f"hit rate {steady.hit_rate:.0%} {expected.basis}: {read} of a token come from the disk")
    elif expected.absent.seconds >= NOTICED:
        coming = f"{size(expected.absent.nbytes)} are not in memory yet"
        lines.append(f"{coming} and come with the first prompt, in about {expected.absent.seconds:.2g} s")
    parts = {
        "dense": "weights of every token",
        "experts": "experts",
        "logits": "logits and text",
        "disk": "waiting for the disk",
    }
    times = [f"{1e3 * expected.token_seconds[name]:.3g} ms {what}" for name, what in parts.items()]
    lines.append(f"time of a token: {', '.join(times)}")
    lines.append(f"expected decode: {_decode(expected)}")
    prompts = [
        f"{speed(phase.per_second)} tokens/s for {n:,} tokens"
        for n, phase in sorted(expected.prompts.items())
    ]
    lines.append(f"expected prefill: {', '.join(prompts)}")
    fewest, most = expected.prefill_between
    if most > SPREAD * fewest:
        slow, quick = (1e9 * seconds for seconds in (expected.filling.slowest, expected.filling.quickest))
        lines.append(
            f"between {speed(fewest)} and {speed(most)} tokens/s for {expected.prefill.tokens}: new memory "
            f"takes {quick:.2f} to {slow:.2f} s/GB here, as the host of this machine has it at hand or not; "
            "expected above is a run that starts right after this"
        )
    return lines
