"""Drafts where the model's second half is far away: `python -m benchmarks.speculation --cluster`.

Two stages of the pocket model, one thread each, on two hosts (`benchmarks.network`: namespaces, which need root), a
link between them; each token that is not guessed waits for it twice.  The same texts as on one machine.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import fmean, median
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from benchmarks import machine
from benchmarks.children import ROOT
from benchmarks.network import HOSTS, Shaped, two_hosts, why_not
from penstock import Engine

PORT: Final = 7700  # of the head, in a namespace of its own
KINDS: Final = ("story", "chat", "tools", "random")
TARGETS: Final = {"story": 1.5, "chat": 1.5, "tools": 1.5, "random": 0.97}


def head(model: Path, listen: str, kinds: list[str], tokens: int, rounds: int) -> None:
    """The first stage, which measures; the worker is somebody else's."""
    from benchmarks.speculation import generate, prompts

    options: dict[str, Any] = {"threads": 1, "memory": None, "learn": "off", "context": 2048}
    rows = []
    with Engine(model, cluster=listen, stages=2, layers="0:2", draft="auto", **options) as engine:
        for kind in kinds:
            engine.speculation = None
            asked = prompts(engine, kind, problems=1)[:2]
            spent: dict[str, list[float]] = {"off": [], "auto": []}
            drafting = engine.new_speculation()
            for number in range(rounds + 1):  # the first one teaches the gate
                texts = []
                for name, speculation in (("off", None), ("auto", drafting)):
                    engine.speculation = speculation
                    engine.runner.keep_up(speculation is not None)
                    text, seconds = generate(engine, kind, asked, tokens)
                    texts.append(text)
                    if number:
                        spent[name].append(fmean(seconds))
                assert texts[0] == texts[1], f"{kind}: drafts changed the text"
            off, auto = median(spent["off"]), median(spent["auto"])
            assert drafting is not None
            rows.append(
                {"kind": kind, "off": 1 / off, "auto": 1 / auto, "speedup": off / auto, **drafting.stats()}
            )
    print(json.dumps(rows), flush=True)


def measured(model: Path, link: Shaped, arguments: list[str]) -> list[dict[str, Any]]:
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}:{os.environ.get('PYTHONPATH', '')}"}
    address = f"{HOSTS[0]}:{PORT}"
    with two_hosts(link) as (here, there):
        command = [*there, sys.executable, "-m", "penstock", "worker", "-m", str(model), "--join", address]
        flags = ["--threads", "1", "--memory", "none", "--once"]
        with subprocess.Popen([*command, *flags], env=environment, stderr=subprocess.DEVNULL) as worker:
            try:
                own = [*here, sys.executable, "-m", "benchmarks.speculation_cluster", "--head", address]
                done = subprocess.run(
                    [*own, "--model", str(model), *arguments],
                    env=environment,
                    check=True,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            finally:
                if worker.poll() is None:
                    worker.terminate()
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def rates(row: dict[str, Any]) -> str:
    found = []
    for name, counts in row["drafted"].items():
        if any(counts):
            right = zip(row["accepted"][name], counts, strict=True)
            found.append(f"{name} " + " ".join(f"{a / n:.0%}" for a, n in right if n > 9))
    return "; ".join(found)


def run(model: Path, links: list[float], kinds: list[str], tokens: int, rounds: int) -> int:
    """links: milliseconds one way"""
    if (why := why_not()) is not None:
        print(f"speculation: {why}", file=sys.stderr)
        return 1
    console = Console(width=140)
    console.print(machine.sentence(), highlight=False)
    columns = (
        "link",
        "text",
        "off, tok/s",
        "auto, tok/s",
        "speedup",
        "wanted",
        "right, by place",
        "with drafts",
    )
    table = Table(*columns, "ms by rows 1, 2", "ms a draft")
    for milliseconds in links:
        arguments = ["--kinds", ",".join(kinds), "--tokens", str(tokens), "--rounds", str(rounds)]
        for row in measured(model, Shaped(1.0, milliseconds), arguments):
            step, more = 1e3 * row["step_seconds"], 1e3 * row["row_seconds"]
            table.add_row(
                f"{milliseconds:g} ms", row["kind"], f"{row['off']:.1f}", f"{row['auto']:.1f}",
                f"{row['speedup']:.2f}", f"{TARGETS[row['kind']]:g}", rates(row),
                f"{row['steps_with_drafts'] / max(1, row['steps']):.0%}", f"{step:.2f}, {step + more:.2f}",
                ", ".join(f"{1e3 * each:.2f}" for each in row["draft_seconds"].values()),
            )  # fmt: skip
    console.print(table)
    return 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--head", required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--kinds", required=True)
    parser.add_argument("--tokens", type=int, required=True)
    parser.add_argument("--rounds", type=int, required=True)
    given = parser.parse_args()
    head(given.model, given.head, given.kinds.split(","), given.tokens, given.rounds)
