"""What drafts gain, by kind of text, and what the gate makes of them.

    python -m benchmarks.speculation                         # the pocket model, every kind of text and drafter
    python -m benchmarks.speculation --kinds story,tools --draft auto --rounds 20
    python -m benchmarks.speculation --cluster               # two stages of it, 5 ms from each other; needs root
    python -m benchmarks.speculation --gpu --synth /dev/shm/q2.gguf   # the published widths on a GPU
    python -m benchmarks.speculation --gpu --synth /dev/shm/dspark.gguf --dspark   # with a DSpark module

Every round generates the same text with each drafter in turn, so that whoever disturbs the machine disturbs all; of
the rounds, after the first, which teaches the gate, medians count.  Texts are checked to be the same.

worst 256    of all windows of 256 tokens the one in which drafts gain least, against plain decoding of these tokens
             (`speculation_windows`); of `off`, a second plain engine against the first, which is what chance can do

story, chat  greedy answers of the pocket model
tools        calls of tools and JSON, each of which the same conversation has had before, as those of agents
mixed        stories and random answers in turn: what the gate has learned is wrong each time
streamed     stories with memory for a quarter of the experts; others come from a disk of 200 MB/s (`slow_disk`)
repeated     calls of tools and JSON, likewise
random       sampled at a temperature at which nobody can guess
lost         random answers, with memory and a disk as for streamed ones
"""

import argparse
import json
import sys
import time
from pathlib import Path
from random import Random
from statistics import fmean, median
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from benchmarks import machine
from benchmarks.machine import Neighbours
from benchmarks.slow_disk import slow_disk
from benchmarks.speculation_windows import worst_window
from penstock import Engine, Sampling
from penstock.chat.driver import ChatDriver
from penstock.chat.messages import Thinking, question
from penstock.pocket import pocket_path
from pocket.data import problem

STORIES: Final = [
    "Tell me a story about a fox and a river.",
    "Tell me a story about a boat.",
    "Tell me a story about a bird in winter.",
]
ASKED: Final = {
    "story": STORIES,
    "chat": [
        "What is a penstock?",
        "What is 486 + 377?",
        "Who are you?",
        "What can you do?",
        "Tell me a joke.",
    ],
    "tools": [],
    "mixed": [*STORIES, *STORIES],
    "streamed": STORIES[:1],
    "repeated": [],
    "random": STORIES[:1],
    "lost": STORIES[:1],
}
TARGETS: Final = {
    "story": 1.4,
    "chat": 1.4,
    "tools": 1.8,
    "mixed": 0.97,
    "streamed": 1.0,
    "repeated": 1.0,
    "random": 0.97,
    "lost": 0.97,
}
DRAFTS: Final = ("off", "ngram", "mtp", "auto")
STREAMED: Final = ("streamed", "repeated", "lost")
AGAIN: Final = "off again"  # says what chance can do
PROBLEMS: Final = 6  # of tools, and as many of JSON


def sampling(kind: str, number: int = 0) -> Sampling:
    """Of a kind's question with this number."""
    if kind in ("random", "lost") or (kind == "mixed" and number % 2):
        return Sampling(temperature=50.0, seed=1, ignore_eos=True)
    return Sampling(temperature=0.0)


def prompts(engine: Engine, kind: str, problems: int = PROBLEMS) -> list[list[int]]:
    driver = ChatDriver(engine)
    if ASKED[kind]:
        return [driver.reply(question(text)).prompt.ids for text in ASKED[kind]]
    found, chance = [], Random(3)
    for skill in ("tools", "json") * problems:
        asked = driver.reply(problem(skill, chance, thinking=Thinking.OFF).conversation).prompt.ids
        said = [step.token for step in engine.generate(asked, 200, sampling(kind))]
        found.append([*asked, *said, *asked])
    return found


def generate(engine: Engine, kind: str, asked: list[list[int]], tokens: int) -> tuple[list[int], list[float]]:
    """What is generated, and the seconds that every token took but those that came with the prompts."""
    said: list[int] = []
    seconds: list[float] = []
    for number, ids in enumerate(asked):
        steps = engine.generate(ids, tokens, sampling(kind, number))
        said.append(next(steps).token)
        begin = time.perf_counter()
        for step in steps:
            said.append(step.token)
            now = time.perf_counter()
            seconds.append(now - begin)
            begin = now
    return said, seconds


def opened(path: Path, kind: str, draft: str) -> Engine:
    if kind not in STREAMED:
        return Engine(path, draft=draft)
    options: dict[str, Any] = {"streaming": "direct", "context": 2048, "prefill_chunk": 64, "learn": "off"}
    whole = Engine(path, draft="off", load=False, memory=1 << 30, **options).plan
    with slow_disk():
        engine = Engine(path, draft=draft, memory=whole.total - 3 * whole.experts_total // 4, **options)
    assert engine.plan.experts_held <= 0.3 * engine.plan.experts_total
    return engine


def measure(path: Path, kind: str, drafts: list[str], tokens: int, rounds: int) -> list[dict[str, Any]]:
    engines = {draft: opened(path, kind, draft) for draft in drafts}
    engines[AGAIN] = opened(path, kind, drafts[0])
    asked = prompts(engines[drafts[0]], kind)
    spent: dict[str, list[list[float]]] = {draft: [] for draft in engines}
    for number in range(rounds + 1):  # the first one teaches the gate
        texts = {}
        for draft, engine in engines.items():
            texts[draft], seconds = generate(engine, kind, asked, tokens)
            if number:
                spent[draft].append(seconds)
        assert len({tuple(text) for text in texts.values()}) == 1, f"{kind}: drafts changed the text"
    best = {draft: median(map(fmean, seconds)) for draft, seconds in spent.items()}
    plain = spent[drafts[0]]
    return [
        {
            "kind": kind,
            "draft": draft,
            "tokens_per_second": 1 / best[draft],
            "speedup": best[drafts[0]] / best[draft],
            "worst_window": worst_window(plain, spent[AGAIN if draft == drafts[0] else draft]),
            **engines[draft].stats().get("draft", {}),
        }
        for draft in drafts
    ]


def shown(row: dict[str, Any]) -> list[str]:
    rates = []
    for name, counts in row.get("drafted", {}).items():
        right = row["accepted"][name]
        if any(counts):
            rates.append(
                f"{name} " + " ".join(f"{a / n:.0%}" for a, n in zip(right, counts, strict=True) if n > 9)
            )
    with_drafts = f"{row['steps_with_drafts'] / max(1, row['steps']):.0%}" if "steps" in row else ""
    cost = f"{row['row_seconds'] / row['step_seconds']:.2f}" if row.get("step_seconds") else ""
    speed = f"{row['tokens_per_second']:.3g}"
    speedup, gain = f"{row['speedup']:.2f}", f"{row['gain']:.2f}" if "gain" in row else ""
    worst = f"{row['worst_window']:.2f}"
    return [row["kind"], row["draft"], speed, speedup, worst, "; ".join(rates), with_drafts, cost, gain]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, default=pocket_path())
    parser.add_argument("--kinds", help="of text; all")
    parser.add_argument("--draft", default=",".join(DRAFTS[1:]))
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", type=Path)
    parser.add_argument(
        "--gpu", action="store_true", help="on a GPU, a synthetic model with a forced drafter"
    )
    parser.add_argument("--synth", type=Path, help="that model, which is written first if it is not there")
    parser.add_argument("--layers", type=int, help="of that model; all")
    parser.add_argument("--dspark", action="store_true", help="that model has a DSpark module, which guesses")
    parser.add_argument("--cluster", action="store_true", help="two stages, with a slow link between them")
    parser.add_argument("--links", default="5,2.5", help="milliseconds one way, comma-separated")
    asked = parser.parse_args()
    if asked.gpu:
        from benchmarks import speculation_gpu

        kinds = list(speculation_gpu.TARGETS)
        if asked.dspark:  # the others are of what followed last time, or of nobody
            kinds = ["forced", "wrong", "random"]
        kinds = asked.kinds.split(",") if asked.kinds else kinds
        rounds, path = min(asked.rounds, 5), asked.synth or asked.model
        speculation_gpu.run(
            path, layers=asked.layers, tokens=asked.tokens, rounds=rounds, kinds=kinds, dspark=asked.dspark
        )
        return
    if asked.cluster:
        from benchmarks import speculation_cluster

        kinds = asked.kinds.split(",") if asked.kinds else list(speculation_cluster.KINDS)
        links, rounds = [float(each) for each in asked.links.split(",")], min(asked.rounds, 3)
        sys.exit(speculation_cluster.run(asked.model, links, kinds, asked.tokens, rounds))
    neighbours, rows = Neighbours(), []
    for kind in asked.kinds.split(",") if asked.kinds else ASKED:
        rows += measure(asked.model, kind, ["off", *asked.draft.split(",")], asked.tokens, asked.rounds)
    console = Console(width=140)
    console.print(f"{machine.sentence()}; others kept {neighbours.cores():.1f} cores busy", highlight=False)
    table = Table(
        "text",
        "draft",
        "tok/s",
        "speedup",
        "worst 256",
        "right, by place",
        "steps with drafts",
        "a row / a step",
        "gain by the gate",
    )
    for row in rows:
        table.add_row(*shown(row))
    console.print(table)
    console.print(
        f"targets: {', '.join(f'{kind} {target}' for kind, target in TARGETS.items())}", highlight=False
    )
    if asked.json:
        asked.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
