"""Whether `penstock plan` tells the truth: what it expects of a model in a budget, and what the engine then does.

    python -m benchmarks.plan_truth                              # files of five mixes, five budgets each
    python -m benchmarks.plan_truth --only pocket,q4 --budgets 1GiB,2GiB,none
    python -m benchmarks.plan_truth --models a.gguf,b.gguf --cold --repeat 3
    python -m benchmarks.plan_truth --only skewed --learned      # experts of very different use, known from a run

Every line is a process that plans, and right after it one that opens the model, reads a prompt and generates an
answer; of a small model, whose answer takes less than a second, several, of which the one in the middle counts.
Of `--repeat` pairs the one counts that others on the machine disturbed least; `others` is how many cores they kept
busy meanwhile.  Budgets go from barely enough to all in memory.  The targets are a ratio within 25 % for decoding and
35 % for prompts.  Without --learned nothing is known of how often experts are used, and plan takes all to be equally
likely; with it a run goes before, from which plan and the next run learn.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from benchmarks import machine
from benchmarks.children import ROOT
from benchmarks.machine import Neighbours
from benchmarks.trial import forget
from penstock.engine.engine import Engine
from penstock.pocket import pocket_path
from penstock.sizes import parse_size, write_size
from penstock.weights.synth import plan_synth, write_synth

PROMPT, ANSWER = 512, 64
ALONE: Final = 0.1  # cores that others may use
LONG_ENOUGH: Final = 1.0  # seconds of answers, or
MOST_RUNS: Final = 5
DECODE, PREFILL = 0.25, 0.35  # how far expectation and finding may be apart
SHARES: Final = (0.0, 0.1, 0.3, 0.6)  # of the experts, beyond the least memory that works; then all of it
MODELS: Final[dict[str, dict[str, Any]]] = {
    "pocket": {},
    "q2": {"mix": "q2", "layers": 3},
    "q4": {"mix": "q4", "ratios": (4, 128), "hash_layers": 0},
    "mxfp4": {"mix": "mxfp4", "ratios": (0, 4), "hash_layers": 1},
    "skewed": {"mix": "mxfp4", "ratios": (0, 4), "hash_layers": 1, "skew": 1.0},
    "q8_0": {"mix": "q8_0", "ratios": (4,), "hash_layers": 0},
}
CHILD: Final = """
import json, random, sys, time
import penstock
path, memory, prompt, answer, learn = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5]
begin = time.perf_counter()
engine = penstock.Engine(path, memory=None if memory == "none" else memory, learn=learn)
load = time.perf_counter() - begin
ids = random.Random(0).choices(range(engine.config.vocab_size), k=prompt)
steps = engine.generate(ids, answer + 1, penstock.Sampling(seed=0, ignore_eos=True))
begin = time.perf_counter()
next(steps)
first = time.perf_counter()
for _ in steps:
    pass
decode = time.perf_counter() - first
engine.close()
print(json.dumps({"load": load, "prefill": prompt / (first - begin), "decode": answer / decode}))
"""


@dataclass(frozen=True)
class Line:
    model: str
    memory: str
    mode: str
    expected: dict[str, float]  # decode, prefill: tokens per second
    found: dict[str, float]
    others: float  # cores

    def ratio(self, what: str) -> float:
        return self.expected[what] / self.found[what]

    def kept(self, what: str) -> bool:
        most = DECODE if what == "decode" else PREFILL
        return 1 - most <= self.ratio(what) <= 1 + most


@contextmanager
def model_files(options: argparse.Namespace, console: Console) -> Iterator[dict[str, Path]]:
    """The models, made if they are not there and gone afterwards unless --keep."""
    if options.models:
        yield {Path(each).name: Path(each) for each in options.models.split(",")}
        return
    files, made = {}, []
    options.folder.mkdir(parents=True, exist_ok=True)
    try:
        for name in options.only.split(","):
            if name == "pocket":
                files[name] = pocket_path()
                continue
            plan = plan_synth(width="flash", vocab=16384, **MODELS[name])
            files[name] = options.folder / f"truth-{name}.gguf"
            if not files[name].exists():
                console.print(f"writing {files[name]} ({plan.data_bytes / 2**30:.1f} GiB) …", markup=False)
                made.append(files[name])
                write_synth(plan, files[name])
                os.sync()  # so that nothing is left to be written while others read
        yield files
    finally:
        if not options.keep:
            for path in made:
                path.unlink(missing_ok=True)


def budgets(path: Path, given: str) -> list[str]:
    if given:
        return given.split(",")
    plan = Engine(path, load=False, memory=None, context=4096).plan
    least = plan.smallest + (8 << 20)
    return [*(write_size(least + int(share * plan.experts_total) >> 20 << 20) for share in SHARES), "none"]


def child(*command: object, **variables: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, *map(str, command)],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), **variables},
    )
    if done.returncode:
        sys.exit(f"plan_truth: {' '.join(map(str, command[:3]))}: {done.stderr.strip()[-600:]}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def compare(name: str, path: Path, memory: str, options: argparse.Namespace, cache: str) -> Line:
    """The pair of plan and run that others disturbed least; the first that they left alone ends it."""
    best: Line | None = None
    learn = "on" if options.learned else "off"
    engine = ("-c", CHILD, path, memory, PROMPT, ANSWER, learn)
    if options.learned:
        child(*engine, XDG_CACHE_HOME=cache)
    for _ in range(options.repeat):
        wait_for_others(options.patience)
        if options.cold:
            forget(path)
        others = Neighbours()
        command = ("-m", "penstock", "plan", "-m", path, "--memory", memory, "--learn", learn, "--json")
        plan = child(*command, XDG_CACHE_HOME=cache)
        runs = [child(*engine, XDG_CACHE_HOME=cache)]
        while len(runs) < MOST_RUNS and sum(ANSWER / run["decode"] for run in runs) < LONG_ENOUGH:
            runs.append(child(*engine, XDG_CACHE_HOME=cache))
        expected = {"decode": plan["tokens_per_second"], "prefill": plan["prefill_tokens_per_second"]}
        found = {what: median(run[what] for run in runs) for what in expected}
        line = Line(name, memory, plan["mode"], expected, found, others.cores())
        if best is None or line.others < best.others:
            best = line
        if best.others < ALONE:
            break
    assert best is not None
    return best


def wait_for_others(patience: float) -> None:
    """Until nobody else keeps a core busy, or for so many seconds."""
    end = time.monotonic() + patience
    while time.monotonic() < end:
        others = Neighbours()
        time.sleep(1.0)
        if others.cores() < ALONE:
            return


def table(lines: Sequence[Line]) -> Table:
    shown = Table(title="expected / found, tokens per second", title_justify="left")
    for column in ("model", "memory", "mode", "decode", "ratio", "prefill", "ratio", "others"):
        shown.add_column(column, justify="left" if column in ("model", "mode") else "right")
    for line in lines:
        cells = [line.model, line.memory, line.mode]
        for what in ("decode", "prefill"):
            mark = "" if line.kept(what) else " ✗"
            cells += [f"{line.expected[what]:.3g} / {line.found[what]:.3g}", f"{line.ratio(what):.2f}{mark}"]
        shown.add_row(*cells, f"{line.others:.1f}")
    return shown


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.plan_truth")
    add = parser.add_argument
    add("--only", default=",".join(name for name in MODELS if name != "skewed"), help="some of the models")
    add("--models", default="", help="files of your own instead, comma-separated")
    add("--budgets", default="", help="comma-separated; else five from barely enough to all")
    add("--repeat", type=int, default=3)
    add("--patience", type=float, default=60.0, help="seconds to wait for others to be quiet")
    add("--learned", action="store_true", help="let a run go before from which the use of experts is learned")
    add("--cold", action="store_true", help="drop the page cache before each pair")
    add("--folder", type=Path, default=ROOT / "build" / "bench", help="where the files are made")
    add("--cache", default="", help="a folder for what is measured; else a new one, gone afterwards")
    add("--keep", action="store_true", help="keep the files")
    add("--json", type=Path, help="write every number to this file")
    options = parser.parse_args()
    for memory in filter(None, options.budgets.split(",")):
        if memory != "none":
            parse_size(memory, "--budgets")
    console = Console(width=None if sys.stdout.isatty() else 150, highlight=False)
    console.print(machine.sentence(), markup=False)
    lines = []
    with model_files(options, console) as files, tempfile.TemporaryDirectory() as folder:
        for name, path in files.items():
            for memory in budgets(path, options.budgets):
                lines.append(compare(name, path, memory, options, options.cache or folder))
                console.print(table(lines[-1:]))
    console.print(table(lines))
    kept = sum(line.kept(what) for line in lines for what in ("decode", "prefill"))
    console.print(f"{kept} of {2 * len(lines)} within {DECODE:.0%} (decode) and {PREFILL:.0%} (prefill)")
    if options.json:
        options.json.write_text(json.dumps([asdict(line) for line in lines], indent=1) + "\n")


if __name__ == "__main__":
    main()
