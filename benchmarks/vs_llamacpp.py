"""Penstock and llama.cpp side by side: one file, the same token ids, the same threads, turn about in one run.

    python -m benchmarks.vs_llamacpp --build            # once: llama.cpp compiled for this CPU, under build/
    python -m benchmarks.vs_llamacpp                    # q2, q4 and mxfp4, three full-width layers, 1 and 2 threads
    python -m benchmarks.vs_llamacpp --mix q2 --layers 43 --threads 16 --only decode

Each engine is a process that stays alive, so neither loading nor the disk is part of a speed; what both do first is
not counted.  llama.cpp runs as its users run it: 16-bit cache, flash attention, mapped file, batches of 512, weights
repacked for the CPU where memory allows (`--repack`).  Without llama.cpp the numbers of Penstock are printed alone.
"""

import argparse
import json
import mmap
import os
import random
import statistics
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks import llamacpp_source, machine
from benchmarks.children import ROOT, ChildError
from benchmarks.contest import ENGINES, MEASURES, PENSTOCK, Contest, Plan, fastest, may_repack
from penstock.bench.bandwidth import read_bandwidth
from penstock.bench.traffic import state_bytes, weight_bytes
from penstock.errors import OptionError, PenstockError
from penstock.weights.files import MappedFile
from penstock.weights.opening import open_checkpoint
from penstock.weights.synth import MIXES, plan_synth, write_synth

NOISE = 0.05  # cores that others may use without mention


@dataclass(frozen=True)
class Result:
    """One measure on one file: every repetition of both engines; tokens per second, or seconds for a start."""

    file: str
    measure: str
    threads: int
    penstock: list[float]  # empty if it did not take part
    llama: list[float]
    llama_version: str
    bytes_per_token: int | None  # decoding only
    bandwidth: float
    neighbours: float  # cores that other processes kept busy meanwhile


# ── the file ──────────────────────────────────────────────────────────────────────────────────────────────


@contextmanager
def synthetic(mix: str, options: argparse.Namespace, console: Console) -> Iterator[Path]:
    """A full-width random model on disk, gone afterwards unless --keep."""
    ratios = (0, 4, 128) if options.layers == 3 else None
    plan = plan_synth(width="flash", layers=options.layers, mix=mix, vocab=options.vocab, ratios=ratios)
    path = options.folder / f"flash-{mix}-{options.layers}L-{options.vocab}.gguf"
    path.parent.mkdir(parents=True, exist_ok=True)
    existed = path.exists()
    if not existed:
        console.print(f"writing {path} ({plan.data_bytes / 1e9:.1f} GB) …", markup=False)
        write_synth(plan, path)  # refuses if the disk is too full
    try:
        yield path
    finally:
        if not options.keep and not existed:
            path.unlink()


def into_page_cache(path: Path) -> None:
    """As a first run of Penstock leaves it there: in large pages where the file system has them, which both use."""
    file = MappedFile(path)
    file.expect_all()
    file.bytes[:: mmap.PAGESIZE].max()


# ── the run and its report ────────────────────────────────────────────────────────────────────────────────


def compare(path: Path, plan: Plan, bandwidth: dict[int, float], console: Console) -> list[Result]:
    into_page_cache(path)
    model = open_checkpoint(path)
    per_token = sum(weight_bytes(model).values()) + state_bytes(
        model.config, plan.prompt + plan.decode // 2, value_bytes=2
    )
    ids = random.Random(0).choices(range(model.config.vocab_size), k=plan.context)
    repack = "llama" in plan.engines and may_repack(plan, path, console)
    engines = {"penstock": PENSTOCK} if "penstock" in plan.engines else {}
    llama = fastest(plan, path, ids, repack, console) if "llama" in plan.engines else None
    if llama:
        engines["llama"] = llama.source
    if not engines:
        return []
    results = []
    for threads in plan.threads:
        contest = Contest(plan, path, threads, engines, repack, ids)
        for measure, values in contest.run():
            read = per_token if measure in ("decode", "busy") else None
            results.append(
                Result(
                    path.stem,
                    measure,
                    threads,
                    values.by_engine.get("penstock", []),
                    values.by_engine.get("llama", []),
                    llama.version if llama else "",
                    read,
                    bandwidth[threads],
                    values.neighbours,
                )
            )
            console.print(progress(results[-1]))
    title = (
        f"{path.name}: {path.stat().st_size / 1e9:.1f} GB, {per_token / 1e6:.0f} MB read per decoded token"
    )
    console.print(table(title, plan, results))
    worst = max(result.neighbours for result in results)
    if worst > NOISE:
        console.print(f"not a quiet machine: other processes kept up to {worst:.1f} cores busy meanwhile")
    return results


def progress(result: Result) -> str:
    """A line for those who wait; a table follows when the file is done."""
    return (
        f"  {result.measure} with {result.threads} thread(s): Penstock {_spread(result.penstock)}, "
        f"llama.cpp {_spread(result.llama)}, others kept {result.neighbours:.1f} cores busy"
    )


def table(title: str, plan: Plan, results: Sequence[Result]) -> Table:
    names = {
        "start": "start to first token, s",
        "decode": f"decode {plan.decode} after {plan.prompt}, tok/s",
        "prefill": f"prefill {plan.prefill}, tok/s",
        "busy": "decode, one core busy, tok/s",
    }
    shown = Table(title=title, title_justify="left")
    shown.add_column("measure")
    for column in (
        "threads",
        "Penstock",
        "of bandwidth",
        "llama.cpp",
        "of bandwidth",
        "Penstock / llama.cpp",
    ):
        shown.add_column(column, justify="right")
    for result in results:
        shown.add_row(
            names[result.measure],
            str(result.threads),
            _spread(result.penstock),
            _share(result.penstock, result),
            _spread(result.llama),
            _share(result.llama, result),
            _ratio(result),
        )
    return shown


def _spread(values: list[float]) -> str:
    if not values:
        return "–"
    return f"{statistics.median(values):.2f} ({min(values):.2f}–{max(values):.2f})"


def _share(values: list[float], result: Result) -> str:
    if result.bytes_per_token is None or not values:
        return ""
    return f"{statistics.median(values) * result.bytes_per_token / result.bandwidth:.0%}"


def _ratio(result: Result) -> str:
    """How many times as fast Penstock is."""
    if not result.llama or not result.penstock:
        return "–"
    ratio = statistics.median(result.penstock) / statistics.median(result.llama)
    return f"{1 / ratio if result.measure == 'start' else ratio:.2f}×"


# ── command line ──────────────────────────────────────────────────────────────────────────────────────────


def arguments() -> argparse.ArgumentParser:
    cores = len(os.sched_getaffinity(0))
    parser = argparse.ArgumentParser(prog="python -m benchmarks.vs_llamacpp")
    add = parser.add_argument
    add("--mix", default="q2,q4,mxfp4", help=f"types of the weights, of {', '.join(MIXES)}")
    add("--layers", type=int, default=3, help="3 (default): one layer of each attention kind")
    add("--vocab", type=int, default=32768)
    add("--model", type=Path, action="append", default=[], help="an existing GGUF file instead; repeatable")
    add("--threads", default=",".join(map(str, dict.fromkeys((1, cores)))), help="e.g. 1,2")
    add("--only", default=",".join(MEASURES), help="some of the measures")
    add("--repeat", type=int, default=5)
    add("--prompt", type=int, default=64, help="tokens before those that are decoded")
    add("--decode", type=int, default=32, help="tokens decoded")
    add("--prefill", type=int, default=512, help="tokens of a prompt")
    add("--engines", default=",".join(ENGINES), help="who takes part")
    add("--llama", choices=("auto", "llama-cpp-python", "xllamacpp"), default="auto", help="which llama.cpp")
    add(
        "--repack",
        choices=("auto", "on", "off"),
        default="auto",
        help="llama.cpp's second copy of the weights",
    )
    add("--build", action="store_true", help="first compile llama-cpp-python for this CPU, under build/")
    add("--folder", type=Path, default=ROOT / "build" / "bench", help="where the files are made")
    add("--keep", action="store_true", help="keep the files")
    add("--json", type=Path, help="write every number to this file")
    return parser


def numbers(text: str, flag: str) -> tuple[int, ...]:
    try:
        found = tuple(int(part) for part in text.split(","))
    except ValueError:
        found = (0,)
    if min(found) < 1:
        raise OptionError(f"--{flag} is {text!r}, expected whole numbers such as 1,2")
    return found


def words(text: str, known: Sequence[str], flag: str) -> tuple[str, ...]:
    found = tuple(text.split(","))
    for word in found:
        if word not in known:
            raise OptionError(f"--{flag}: there is no {word!r}, expected some of {','.join(known)}")
    return found


def run(options: argparse.Namespace, console: Console) -> None:
    for flag in ("repeat", "prompt", "decode", "prefill"):
        numbers(str(getattr(options, flag)), flag)
    plan = Plan(
        words(options.only, MEASURES, "only"),
        numbers(options.threads, "threads"),
        options.repeat,
        options.prompt,
        options.decode,
        options.prefill,
        options.repack,
        words(options.engines, ENGINES, "engines"),
        options.llama,
    )
    mixes = words(options.mix, list(MIXES), "mix")
    if options.build:
        llamacpp_source.build()
    bandwidth = {threads: read_bandwidth(threads) for threads in plan.threads}
    console.print(machine.sentence(), markup=False)
    console.print(
        "memory reads: " + ", ".join(f"{b / 1e9:.1f} GB/s with {t} thread(s)" for t, b in bandwidth.items())
    )
    results = []
    files: list[AbstractContextManager[Path]] = [nullcontext(path.resolve()) for path in options.model]
    for mix in mixes if not files else ():
        files.append(synthetic(mix, options, console))
    for file in files:
        with file as path:
            results += compare(path, plan, bandwidth, console)
    if options.json:
        report = {"machine": machine.describe(), "plan": asdict(plan), "bandwidth": bandwidth}
        report["results"] = [asdict(result) for result in results]
        options.json.write_text(json.dumps(report, indent=1) + "\n")


def main() -> None:
    options = arguments().parse_args()
    try:
        run(options, Console(width=None if sys.stdout.isatty() else 150, highlight=False))
    except (PenstockError, ChildError) as error:
        sys.exit(f"vs_llamacpp: {error}")
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
