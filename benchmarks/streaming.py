"""Models larger than memory: Penstock and llama.cpp, each in a memory control group of the same size.

    python -m benchmarks.streaming                          # all cases; about 27 GB of disk, one file at a time
    python -m benchmarks.streaming --only limited,sweep --plot memory.svg
    python -m benchmarks.streaming --only disk --folder /mnt/nvme --keep

Every run is a new process that starts with a cold page cache inside a control group of its own, where private
memory and page cache count alike; entrants take turns, and medians are compared.  Of the decoded tokens the first
half counts as cold, the second as steady.  The models have the published width and random weights; which experts a
token needs follows Zipf's law with exponent 1.  llama.cpp maps the file, without repacking.  What Penstock computes
is compared bit for bit with an engine that has all the memory there is.
"""

import argparse
import json
import os
import shutil
import statistics
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

from benchmarks import cgroup, llamacpp_source, machine
from benchmarks.children import ROOT, ChildError
from benchmarks.memory_plot import draw
from benchmarks.streaming_cases import CASES, SWEEP, Bench, Counts, Means, Row
from benchmarks.trial import Trial, forget
from benchmarks.vs_llamacpp import numbers, words
from penstock.bench.svg import check_picture
from penstock.errors import OptionError, PenstockError
from penstock.weights.synth import SynthPlan, plan_synth, write_synth

SPARE: Final = 2 << 30  # bytes of disk that stay free
SKEW: Final = 1.0
COLUMNS: Final = ("case", "measure", "Penstock", "compared with", "ratio", "target", "met")


# ── the file ──────────────────────────────────────────────────────────────────────────────────────────────


def model_plan(layers: int) -> SynthPlan:
    ratios = (0, 4, 128) if layers == 3 else None  # one layer of each attention kind
    return plan_synth(width="flash", layers=layers, mix="q2", ratios=ratios, hash_layers=3, skew=SKEW)


@contextmanager
def model_file(plan: SynthPlan, options: argparse.Namespace, console: Console) -> Iterator[Path]:
    """The planned model on disk, gone afterwards unless --keep or it was there before."""
    config = plan.config
    path = options.folder / f"{plan.name.replace(' ', '-')}-{config.vocab_size}.gguf"
    path.parent.mkdir(parents=True, exist_ok=True)
    existed = path.exists()
    if not existed:
        free = shutil.disk_usage(path.parent).free
        if plan.data_bytes + SPARE > free:
            raise OptionError(
                f"{path}: the model needs {plan.data_bytes / 1e9:.1f} GB, the disk has {free / 1e9:.1f} free"
            )
        console.print(f"writing {path} ({plan.data_bytes / 2**30:.1f} GiB) …", markup=False)
        write_synth(plan, path)
    try:
        yield path
    finally:
        if not options.keep and not existed:
            path.unlink()


# ── report ────────────────────────────────────────────────────────────────────────────────────────────────


def table(rows: Sequence[Row]) -> Table:
    shown = Table(title="models larger than memory", title_justify="left")
    for column in COLUMNS:
        shown.add_column(column, justify="left" if column in COLUMNS[:2] else "right")
    for row in rows:
        shown.add_row(*cells(row))
    return shown


def cells(row: Row) -> list[str]:
    """As many as there are columns.  Beyond two entrants each would say the same of itself; the worst is `found`."""
    sides = [f"{name}: {_spread(values)}" for name, values in row.values.items()][:2]
    if len(row.values) > 2:
        sides = [f"{len(row.values)} entrants"]
    sides += [""] * (2 - len(sides))
    found = "" if row.found is None else f"{row.found:.2f}"
    met = {True: "yes", False: "no", None: "–" if row.target else ""}[row.met]
    return [row.case, row.measure, *sides, found, row.target, met]


def progress(row: Row) -> str:
    """A line for those who wait; the table follows at the end."""
    return "· " + " | ".join(cell for cell in cells(row) if cell)


def _spread(values: list[float]) -> str:
    if not values:
        return "–"
    return f"{statistics.median(values):.2f} ({min(values):.2f}–{max(values):.2f})"


def plot(rows: Sequence[Row], title: str) -> str | None:
    """Of the sweep; None if it was not run."""
    speeds: dict[float, float] = {}
    free: list[float] = []
    for gib, row in zip(SWEEP, (row for row in rows if row.case == "sweep" and not row.target), strict=False):
        ours, free = row.values.values()
        if ours:
            speeds[gib] = statistics.median(ours)
    return draw(title, speeds, statistics.median(free) if free else None) if speeds else None


# ── command line ──────────────────────────────────────────────────────────────────────────────────────────


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.streaming")
    add = parser.add_argument
    add("--only", default=",".join(CASES), help="some of the cases")
    add("--repeat", type=int, default=3)
    add("--threads", type=int, default=len(os.sched_getaffinity(0)))
    add("--prompt", type=int, default=32, help="tokens before those that are decoded")
    add("--decode", type=int, default=64, help="tokens decoded; the second half counts as steady")
    add("--prefill", type=int, default=512, help="tokens of a prompt")
    add("--folder", type=Path, default=ROOT / "build" / "bench", help="where the files are made")
    add("--keep", action="store_true", help="keep the files")
    add("--json", type=Path, help="write every number to this file")
    add("--plot", type=Path, help="write the sweep to this file, as SVG")
    return parser


def find_means(console: Console) -> Means:
    """Says what there is and what is missing."""
    console.print(machine.sentence(), markup=False)
    llama = next(iter(llamacpp_source.sources()), None)
    if llama is None:
        console.print("no llama.cpp here (python -m benchmarks.vs_llamacpp --build makes one)")
    try:
        console.print(f"memory control groups under {cgroup.find_parent().folder}", markup=False)
    except cgroup.NoMemoryGroups as error:
        console.print(
            f"{error}; left out: {', '.join(n for n in CASES if CASES[n].needs_groups)}", markup=False
        )
        return Means(llama, groups=False)
    return Means(llama, groups=True)


def run(options: argparse.Namespace, console: Console) -> list[Row]:
    for flag in ("repeat", "threads", "prompt", "decode", "prefill"):
        numbers(str(getattr(options, flag)), flag)
    if options.decode < 2:
        raise OptionError(f"--decode is {options.decode}, expected at least 2: a cold and a steady half")
    counts = Counts(options.threads, options.repeat, options.prompt, options.decode, options.prefill)
    if options.plot:
        check_picture(options.plot, "--plot")
    chosen = words(options.only, list(CASES), "only")
    means = find_means(console)
    names = [name for name in CASES if name in chosen and (means.groups or not CASES[name].needs_groups)]
    rows: list[Row] = []
    trials: list[Trial] = []
    for layers, group in groupby(names, key=lambda name: CASES[name].layers):
        plan = model_plan(layers)
        try:
            with model_file(plan, options, console) as path:
                console.print(
                    f"{path.name}: {path.stat().st_size / 2**30:.1f} GiB, {forget(path)}", markup=False
                )
                say = partial(console.print, markup=False, soft_wrap=True)
                bench = Bench(path, plan.config.vocab_size, counts, means, say)
                for name in group:
                    for row in CASES[name].run(bench):
                        rows.append(row)
                        say(progress(row))
                trials += bench.trials
        except OptionError as error:
            console.print(f"{layers} layers left out: {error}", markup=False)
    console.print(table(rows))
    if options.json:
        report = {"machine": machine.describe(), "counts": counts._asdict()}
        found = {"rows": [asdict(row) for row in rows], "trials": [asdict(trial) for trial in trials]}
        options.json.write_text(json.dumps(report | found, indent=1) + "\n")
    if options.plot and (picture := plot(rows, f"3 layers, q2, {counts.threads} threads")):
        options.plot.write_text(picture)
    return rows


def main() -> None:
    options = arguments().parse_args()
    try:
        run(options, Console(width=None if sys.stdout.isatty() else 170, highlight=False))
    except (PenstockError, ChildError, cgroup.NoMemoryGroups) as error:
        sys.exit(f"streaming: {error}")
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
