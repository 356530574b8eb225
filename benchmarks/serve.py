"""The server under load: servers and clients in processes of their own, as people run them.

    python -m benchmarks.serve                                   # all cases, on the pocket model
    python -m benchmarks.serve --only streams --seconds 30
    python -m benchmarks.serve --only overhead --layers 3 --keep --json overhead.json

streams    64 streams at a time: nothing is lost, crossed or answered differently than alone; latencies; memory
batch      tokens per second of 8 streams and of one
overhead   the time in which the engine does not compute, and the speed without HTTP; also on a file of full width
restart    the second turn of a long conversation after the server was ended or killed
pace       the time between tokens while somebody else's long prompt is read
"""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks import machine
from benchmarks.children import ROOT, ChildError
from benchmarks.serve_cases import CASES, Bench, Counts, Row
from benchmarks.vs_llamacpp import numbers, words
from penstock.errors import OptionError, PenstockError

NOISE = 0.05  # cores that others may use without mention


def cells(row: Row) -> list[str]:
    found = "–" if row.found is None else f"{row.found:,.{digits(row.found)}f} {row.unit}".strip()
    met = {True: "yes", False: "no", None: ""}[row.met]
    return [row.case, row.measure, found, row.target, met, row.note]


def digits(value: float) -> int:
    """Decimal places: whole numbers have none, others three significant digits or so."""
    if value == int(value):
        return 0
    return 1 if abs(value) >= 100 else 2 if abs(value) >= 1 else 3


def table(rows: Sequence[Row]) -> Table:
    shown = Table(title="serving", title_justify="left")
    for column in ("case", "measure", "found", "target", "met", ""):
        shown.add_column(column, justify="right" if column in ("found", "target", "met") else "left")
    for row in rows:
        shown.add_row(*cells(row))
    return shown


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serve")
    add = parser.add_argument
    add("--only", default=",".join(CASES), help="some of the cases")
    add("--seconds", type=float, default=120.0, help="how long the streams go on")
    add("--threads", type=int, default=len(os.sched_getaffinity(0)), help="of the server")
    add("--memory", default="auto", help="of the server")
    add("--repeat", type=int, default=3)
    add("--tokens", type=int, default=256, help="of an answer whose speed is measured")
    add("--layers", type=int, default=2, help="of the full-width file")
    add("--folder", type=Path, default=ROOT / "build" / "bench", help="where that file is made")
    add("--keep", action="store_true", help="keep it")
    add("--json", type=Path, help="write every number to this file")
    return parser


def run(options: argparse.Namespace, console: Console) -> list[Row]:
    for flag in ("threads", "repeat", "tokens", "layers"):
        numbers(str(getattr(options, flag)), flag)
    if options.seconds <= 0:
        raise OptionError(f"--seconds is {options.seconds}, expected more than 0")
    chosen = words(options.only, list(CASES), "only")
    say = partial(console.print, markup=False, soft_wrap=True)
    say(machine.sentence())
    counts = Counts(
        options.threads,
        options.seconds,
        options.repeat,
        options.tokens,
        options.layers,
        options.memory,
        options.folder,
        options.keep,
    )
    bench = Bench(counts, say)
    rows: list[Row] = []
    others = machine.Neighbours()
    for name in CASES:
        if name in chosen:
            for row in CASES[name](bench):
                rows.append(row)
                say("· " + " | ".join(cell for cell in cells(row) if cell))
    busy = others.cores()
    console.print(table(rows))
    if busy > NOISE:
        say(f"others kept {busy:.2f} cores busy meanwhile")
    if options.json:
        report = {"machine": machine.describe(), "neighbours": busy, "counts": counts._asdict()}
        report["rows"] = [asdict(row) for row in rows]
        options.json.write_text(json.dumps(report, indent=1, default=str) + "\n")
    return rows


def main() -> None:
    options = arguments().parse_args()
    try:
        run(options, Console(width=None if sys.stdout.isatty() else 170, highlight=False))
    except (PenstockError, ChildError) as error:
        sys.exit(f"serve: {error}")
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
