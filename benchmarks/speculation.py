"""What drafts gain, by kind of text, and what the gate makes of them.

    python -m benchmarks.speculation                         # the pocket model, every kind of text and drafter
    python -m benchmarks.speculation --draft auto --tokens 400 --rounds 5

Every round generates the same text with each drafter in turn, so that whoever disturbs the machine disturbs all; of
the rounds the fastest counts.  Texts are checked to be the same.  *random* is sampled at a high temperature, where no
drafter can be right; *tools* repeats parts of its prompt, as agents do.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from benchmarks import machine
from benchmarks.machine import Neighbours
from penstock import Engine, Sampling
from penstock.chat.driver import ChatDriver
from penstock.chat.messages import question
from penstock.pocket import pocket_path

STORY: Final = "Tell me a story about a fox and a river."
RECORDS: Final = [
    {"city": city, "unit": "celsius", "days": n} for n, city in enumerate(("Oslo", "Bern", "Rome", "Kiel"))
]
ASKED: Final = {
    "story": [STORY, "Tell me a story about a boat.", "Tell me a story about a bird in winter."],
    "chat": ["What is a penstock?", "What is 486 + 377?", "Who are you?", "What can you do?"],
    "tools": [f"Repeat this text.\n\n{json.dumps(RECORDS, indent=1)}"],
    "random": [STORY],
}
TARGETS: Final = {"story": 1.4, "chat": 1.4, "tools": 1.8, "random": 0.97}
DRAFTS: Final = ("off", "ngram", "mtp", "auto")


def sampling(kind: str) -> Sampling:
    if kind == "random":
        return Sampling(temperature=50.0, seed=1, ignore_eos=True)
    return Sampling(temperature=0.0, ignore_eos=kind == "tools")


def generate(engine: Engine, kind: str, tokens: int) -> tuple[list[int], float]:
    """What is generated, and seconds per token once the prompt is read."""
    said: list[int] = []
    seconds = 0.0
    for text in ASKED[kind]:
        steps = engine.generate(ChatDriver(engine).reply(question(text)).prompt.ids, tokens, sampling(kind))
        said.append(next(steps).token)
        begin = time.perf_counter()
        said += [step.token for step in steps]
        seconds += time.perf_counter() - begin
    return said, seconds / max(1, len(said) - len(ASKED[kind]))


def measure(path: Path, kind: str, drafts: list[str], tokens: int, rounds: int) -> list[dict[str, Any]]:
    engines = {draft: Engine(path, draft=draft) for draft in drafts}
    best: dict[str, float] = {}
    for number in range(rounds + 1):  # the first one teaches the gate
        texts = {}
        for draft, engine in engines.items():
            texts[draft], seconds = generate(engine, kind, tokens)
            if number:
                best[draft] = min(seconds, best.get(draft, seconds))
        assert len({tuple(text) for text in texts.values()}) == 1, f"{kind}: drafts changed the text"
    return [
        {
            "kind": kind,
            "draft": draft,
            "tokens_per_second": 1 / best[draft],
            "speedup": best[drafts[0]] / best[draft],
            **engine.stats().get("draft", {}),
        }
        for draft, engine in engines.items()
    ]


def shown(row: dict[str, Any]) -> list[str]:
    rates = []
    for name, counts in row.get("drafted", {}).items():
        right = row["accepted"][name]
        if any(counts):
            rates.append(
                f"{name} " + " ".join(f"{a / n:.0%}" for a, n in zip(right, counts, strict=True) if n)
            )
    with_drafts = f"{row['steps_with_drafts'] / max(1, row['steps']):.0%}" if "steps" in row else ""
    cost = f"{row['row_seconds'] / row['step_seconds']:.2f}" if row.get("step_seconds") else ""
    speed = f"{row['tokens_per_second']:.3g}"
    return [row["kind"], row["draft"], speed, f"{row['speedup']:.2f}", "; ".join(rates), with_drafts, cost]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, default=pocket_path())
    parser.add_argument("--kinds", default=",".join(ASKED))
    parser.add_argument("--draft", default=",".join(DRAFTS[1:]))
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    neighbours, rows = Neighbours(), []
    for kind in asked.kinds.split(","):
        rows += measure(asked.model, kind, ["off", *asked.draft.split(",")], asked.tokens, asked.rounds)
    console = Console()
    console.print(f"{machine.sentence()}; others kept {neighbours.cores():.1f} cores busy", highlight=False)
    table = Table(
        "text", "draft", "tok/s", "speedup", "right, by place", "steps with drafts", "a row / a step"
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
