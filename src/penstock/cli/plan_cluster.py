"""What `penstock plan --cluster` shows: what each machine holds, the speed to expect, and what binds it."""

import contextlib
import json
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.table import Table

from penstock.backend import open_backend
from penstock.bench.cluster import DISK, LINK, ClusterExpectation, Link, expect_cluster, parse_machines
from penstock.bench.expectation import PROMPT
from penstock.bench.expert_workers import Helped, expect_helped
from penstock.engine.opening import open_model
from penstock.engine.options import EngineOptions
from penstock.errors import BudgetError, OptionError
from penstock.sizes import size, speed, write_amount

_SAY = partial(print, file=sys.stderr)


@dataclass(frozen=True)
class Asked:
    """What a person wants to know; machines as `parse_machines` reads them."""

    cluster: str
    experts: str  # of expert workers
    gigabits: float  # of the link, per second
    latency: float  # milliseconds, one way

    def __post_init__(self) -> None:
        for flag, value, most in (("--link", self.gigabits, 10_000), ("--latency", self.latency, 10_000)):
            if not 0 <= value <= most or (flag == "--link" and not value):
                raise OptionError(f"{flag} is {value:g}, expected a number up to {most:,}")

    @property
    def link(self) -> Link:
        return Link(self.gigabits * 1e9 / 8, self.latency / 1e3)


def show_cluster_plan(
    path: Path, chosen: EngineOptions, asked: Asked, measure: bool, json_output: bool
) -> None:
    """Stages, or with expert workers the first machine and those."""
    planned = parse_machines(asked.cluster, "--cluster")
    workers = parse_machines(asked.experts, "--expert-workers") if asked.experts else []
    if workers and len(planned) > 1:
        raise OptionError(
            f"--cluster has {len(planned)} machines, but --expert-workers help one that has all layers"
        )
    checkpoint = open_model(path, chosen, download=False)
    backend = open_backend("cpu", chosen.thread_count)
    found = expect_cluster(checkpoint, chosen, backend, planned, asked.link, again=measure, say=_SAY)
    one = None
    with contextlib.suppress(BudgetError):
        one = expect_cluster(checkpoint, chosen, backend, planned[:1], asked.link)
    helped = (
        expect_helped(checkpoint, one, one.costs, workers, asked.link) if one is not None and workers else ()
    )
    if json_output:
        alone = None if one is None else one.as_dict()
        more = {"expert_workers": [each.as_dict() for each in helped]} if helped else {}
        print(json.dumps(found.as_dict() | {"first_machine_alone": alone} | more))
        return
    console = Console(highlight=False, soft_wrap=True)
    console.print(_table(found))
    for line in [*_sentences(found), *([_alone(one)] if len(planned) > 1 else []), *map(_helped, helped)]:
        console.print(line)


def _helped(found: Helped) -> str:
    decoding = found.rows == 1
    what, tokens = ("decoding", 1) if decoding else (f"a prompt of {PROMPT} tokens", PROMPT)
    experts, messages = 1e3 * found.expert_seconds, 1e3 * found.message_seconds
    if not found.useful:
        why = f"messages would take {messages:.3g} ms and experts take {experts:.3g}"
        return f"{what}: expert workers are of no use, {why}"
    before, after = speed(tokens / found.alone_seconds), speed(tokens / found.seconds)
    return (
        f"{what}: expert workers would compute {found.share:.0%} of the experts, {before} → {after} tokens/s "
        f"({messages:.3g} ms of messages for {experts:.3g} ms of experts)"
    )


def _table(found: ClusterExpectation) -> Table:
    table = Table()
    for column in ("stage", "layers", "memory", "dense held", "experts held", "a token", "waits for disk"):
        table.add_column(column, justify="right")
    for number, stage in enumerate(found.stages, 1):
        plan = stage.plan
        table.add_row(
            str(number),
            f"{stage.layers.start}:{stage.layers.stop}",
            write_amount(stage.machine.memory),
            f"{plan.dense_held / plan.dense:.0%}",
            f"{plan.hit_rate():.0%}",
            f"{1e3 * stage.token_seconds:.3g} ms",
            f"{stage.waiting_seconds / stage.token_seconds:.0%}",
        )
    return table


def _sentences(found: ClusterExpectation) -> list[str]:
    link, (what, slowest) = found.link, found.binds
    bits = 8 * link.bytes_per_second / 1e9
    count, stage = len(found.stages), found.stages[slowest]
    lines = []
    if count > 1:
        lines.append(
            f"link {bits:g} Gb/s, {1e3 * link.latency:g} ms: {size(found.row_bytes)} of a token cross each boundary, "
            f"{1e3 * found.link_seconds:.3g} ms of a token in all"
        )
    lines.append(f"expected decode: {speed(found.alone)} tokens/s for one request")
    if count > 1:
        lines[-1] += f", {speed(found.together)} for {count} together"
    lines.append(f"expected prefill: {speed(found.prefill())} tokens/s for {PROMPT} tokens")
    where = f"stage {slowest + 1} takes longest, {1e3 * stage.token_seconds:.3g} ms"
    words = {
        LINK: "the link: fewer machines, or a faster network, would help",
        DISK: f"the disk: more memory would help, and more machines bring it ({where})",
    }
    lines.append(f"one request is bound by {words.get(what, f'computing ({where})')}")
    return lines


def _alone(one: ClusterExpectation | None) -> str:
    if one is None:
        return "the first machine alone has not enough memory for the model"
    decode, prefill = speed(one.alone), speed(one.prefill())
    return f"the first machine alone: {decode} tokens/s, and {prefill} of a prompt"
