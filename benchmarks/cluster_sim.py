"""What several machines would do with a published model, from costs that are measured on this one.

    python -m benchmarks.cluster_sim                                # DeepSeek-V4-Flash in the 2-bit mix
    python -m benchmarks.cluster_sim --cases "16GiB,16GiB*16" --plot docs/cluster.svg

Every machine has the memory that its case says, is so many times as fast as this one, and has a disk as fast as
`--disk` says; layers of the model's shape are measured here and each stage is played through
(`penstock.bench.cluster`).  Prints tables for a page, the links in one cell where they differ, and draws them.
"""

import argparse
import math
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from benchmarks import machine
from benchmarks.budgets import LATENCY
from penstock.backend import open_backend
from penstock.bench.cluster import ClusterExpectation, Link, Planned, expect_cluster, parse_machines
from penstock.bench.svg import COLOURS, QUIET, check_picture, dot, labels, line, page, polyline, text
from penstock.engine.options import EngineOptions
from penstock.errors import PenstockError
from penstock.sizes import speed, write_size
from penstock.storage.read_speed import ReadSpeed
from penstock.weights.imagined import imagine
from penstock.weights.synth import MIXES, stored_type
from penstock.weights.widths import WIDTHS

PROMPT = 4096
KINDS = ("one request", "one for each machine", f"prompt of {PROMPT:,}")
DASHES = ("2 3", "6 3", "none")
Case = dict[int, ClusterExpectation]  # by number of machines


def simulate(given: argparse.Namespace, machine: Planned, link: Link) -> Case:
    """Several machines of a kind."""
    checkpoint = imagine(WIDTHS[given.width].whole(), lambda plan: stored_type(plan, given.mix))
    options = EngineOptions(
        threads=given.threads, draft="off", context=PROMPT + 512, prefill_chunk=given.chunk
    )
    backend, disk = open_backend("cpu", given.threads), ReadSpeed(given.disk * 1e9, LATENCY)
    found: Case = {}
    for count in map(int, given.machines.split(",")):
        again, given.measure = given.measure, False
        found[count] = expect_cluster(
            checkpoint,
            options,
            backend,
            [machine] * count,
            link,
            disk=disk,
            again=again,
            say=partial(print, file=sys.stderr),
        )
    return found


def speeds(found: ClusterExpectation, link: Link) -> tuple[float, float, float]:
    """Stages are as they are, whatever lies between them."""
    found = replace(found, link=link)
    return found.alone, found.together, found.prefill(PROMPT)


def name_of(machine: Planned) -> str:
    faster = "" if machine.speed == 1 else f", {machine.speed:g} times as fast as this one"
    return f"{write_size(machine.memory)} each{faster}"


def table(case: Case, links: Sequence[Link]) -> list[str]:
    columns = ("machines", "experts held", *KINDS, "one request is bound by")
    lines = [f"| {' | '.join(columns)} |", f"|{'---:|' * len(columns)}"]
    for count, found in case.items():
        held = sum(stage.plan.experts_held for stage in found.stages)
        share = min(1.0, held / sum(stage.plan.experts_total for stage in found.stages))
        by_link = [[speed(each) for each in speeds(found, link)] for link in links]
        kinds = [
            " / ".join(dict.fromkeys(each) if len(set(each)) == 1 else each)
            for each in zip(*by_link, strict=True)
        ]
        bound = [replace(found, link=link).binds[0] for link in links]
        cells = [str(count), f"{share:.0%}", *kinds, " / ".join(bound if len(set(bound)) > 1 else bound[:1])]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def draw(cases: Sequence[tuple[Planned, Case]], links: Sequence[Link]) -> str:
    """A panel for each kind of speed; a colour for each kind of machine, a dash for each link."""
    wide, tall, top, left, gap = 220, 220, 50, 64, 64
    body = []
    counts = list(cases[0][1])
    for panel, kind in enumerate(KINDS):
        x0 = left + panel * (wide + gap)
        all_ = [speeds(found, link)[panel] for _, case in cases for found in case.values() for link in links]
        low, high = math.floor(math.log10(min(all_))), math.ceil(math.log10(max(all_)))

        def height(value: float, low: int = low, high: int = high) -> float:
            return top + tall - tall * (math.log10(value) - low) / (high - low)

        body.append(text(x0 + wide / 2, top - 14, f"{kind}, tokens per second"))
        for tick in (digit * 10.0**power for power in range(low, high) for digit in (1, 2, 5)):
            y = height(tick)
            body += [line(x0, y, x0 + wide, y), text(x0 - 6, y + 4, f"{tick:g}", "end", colour=QUIET)]
        body += labels([(x0 + wide * count / counts[-1], str(count)) for count in counts], top + tall + 18)
        for colour, (_, case) in zip(COLOURS, cases, strict=False):
            for dash, link in zip(DASHES, links, strict=False):
                points = [
                    (x0 + wide * count / counts[-1], height(speeds(found, link)[panel]))
                    for count, found in case.items()
                ]
                drawn = polyline(points, colour).replace("/>", f' stroke-dasharray="{dash}"/>')
                body += [drawn, *(dot(x, y, colour) for x, y in points)]
    y = top + tall + 46
    for number, (colour, (kind_, _)) in enumerate(zip(COLOURS, cases, strict=False)):
        body.append(text(left, y + 18 * number, name_of(kind_), "start", colour=colour))
    for number, (dash, link) in enumerate(zip(DASHES, links, strict=False)):
        x = left + 340 + 120 * number
        body += [
            line(x, y - 4, x + 30, y - 4, "#1d2733", f'stroke-dasharray="{dash}"'),
            text(x + 36, y, f"{8 * link.bytes_per_second / 1e9:g} Gb/s", "start"),
        ]
    body.append(text(left + 3 * wide + 2 * gap, y + 18, "by number of machines", "end", colour=QUIET))
    return page(left + 3 * (wide + gap) - gap + 20, top + tall + 52 + 18 * len(cases), body)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cluster_sim")
    add = parser.add_argument
    add("--width", default="flash", choices=list(WIDTHS))
    add("--mix", default="q2", choices=list(MIXES))
    add(
        "--cases",
        default="16GiB,16GiB*16",
        help="kinds of machines: memory, and how many times as fast as this one",
    )
    add("--machines", default="1,2,3,4,6,8,12,16", help="how many; comma-separated")
    add("--links", default="1,10,40", help="Gb/s; comma-separated")
    add("--latency", type=float, default=0.1, help="milliseconds, one way")
    add("--chunk", type=int, default=256, help="tokens of a prompt at a time")
    add("--disk", type=float, default=3.5, help="GB/s that each disk reads")
    add("--threads", type=int, default=len(os.sched_getaffinity(0)))
    add("--measure", action="store_true", help="measure this machine again")
    add("--plot", type=Path, help="draw a picture to this SVG file")
    given = parser.parse_args()
    links = [Link(float(each) * 1e9 / 8, given.latency / 1e3) for each in given.links.split(",")]
    try:
        if given.plot is not None:
            check_picture(given.plot, "--plot")
        cases = [(each, simulate(given, each, links[0])) for each in parse_machines(given.cases, "--cases")]
    except PenstockError as error:
        sys.exit(f"cluster_sim: {error}")
    print(f"{machine.sentence()}; disks {given.disk:g} GB/s, latency {given.latency:g} ms; tokens per second")
    for kind, case in cases:
        print(f"\n{name_of(kind)}, links of {given.links.replace(',', ' / ')} Gb/s:\n")
        print("\n".join(table(case, links)))
    if given.plot is not None:
        given.plot.write_text(draw(cases, links))


if __name__ == "__main__":
    main()
