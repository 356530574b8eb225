"""What to expect of a published model on this machine in several budgets of memory, without having it.

    python -m benchmarks.budgets                                   # DeepSeek-V4-Flash in the 2-bit mix
    python -m benchmarks.budgets --mix mxfp4 --memory 8GiB,64GiB --disk 7.0

Layers of its shape are measured on this machine; the disk is as fast as `--disk` says.  Prints a table for a page.
"""

import argparse
import os
import sys
from functools import partial

from benchmarks import machine
from penstock.backend import open_backend
from penstock.bench.budgets import COLUMNS, budgets
from penstock.engine.options import EngineOptions
from penstock.errors import PenstockError
from penstock.sizes import parse_size
from penstock.storage.read_speed import ReadSpeed
from penstock.weights.imagined import imagine
from penstock.weights.synth import MIXES, stored_type
from penstock.weights.widths import WIDTHS

LATENCY = 2e-4  # seconds, of a solid-state disk


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.budgets")
    add = parser.add_argument
    add("--width", default="flash", choices=list(WIDTHS))
    add("--mix", default="q2", choices=list(MIXES))
    add("--memory", default="2GiB,4GiB,8GiB,12GiB,16GiB,32GiB,64GiB,96GiB", help="comma-separated")
    add("--disk", type=float, default=3.5, help="GB/s that the disk reads")
    add("--threads", type=int, default=len(os.sched_getaffinity(0)))
    chosen = parser.parse_args()
    checkpoint = imagine(WIDTHS[chosen.width].whole(), lambda plan: stored_type(plan, chosen.mix))
    options = EngineOptions(threads=chosen.threads, draft="off")
    backend = open_backend("cpu", chosen.threads)
    try:
        amounts = [parse_size(each, "--memory") for each in chosen.memory.split(",")]
        disk = ReadSpeed(chosen.disk * 1e9, LATENCY)
        say = partial(print, file=sys.stderr)
        rows = [each.cells() for each in budgets(checkpoint, options, backend, amounts, disk, say)]
    except PenstockError as error:
        sys.exit(f"budgets: {error}")
    print(f"{machine.sentence()}; disk {chosen.disk:g} GB/s\n")
    for cells in ([*COLUMNS], ["---:"] * len(COLUMNS), *rows):
        print(f"| {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
