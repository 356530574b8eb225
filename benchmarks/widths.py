"""What a step costs by its number of rows, of one sequence: a token and drafts after it.

    python -m benchmarks.widths                      # the pocket model
    python -m benchmarks.widths --model FILE --rows 1,2,3,4,5 --rounds 200

Rounds take widths in turn, so that whoever disturbs the machine disturbs all; medians count.  Of every step one token
is kept, as if all drafts had been wrong.  The last column is a draft of the model's draft block, where it has one.
"""

import argparse
import time
from pathlib import Path
from statistics import median

import numpy as np

from benchmarks import machine
from benchmarks.machine import Neighbours
from penstock import Engine
from penstock.pocket import pocket_path


def measure(
    path: Path, widths: list[int], rounds: int, context: int
) -> tuple[dict[int, float], float | None]:
    engine = Engine(path, context=context + rounds * len(widths) + max(widths) + 1)
    session, numbers = engine.session(), np.random.default_rng(0)

    def ids(count: int) -> list[int]:
        return [int(token) for token in numbers.integers(16, engine.config.vocab_size, count)]

    session.feed(ids(context))
    seconds: dict[int, list[float]] = {rows: [] for rows in widths}
    drafts: list[float] = []
    for _ in range(rounds):
        for rows in widths:
            tokens = ids(rows)
            begin = time.perf_counter()
            engine.stepper.advance([(session, tokens, rows)], judge=lambda _number, _logits: 1)
            seconds[rows].append(time.perf_counter() - begin)
            if engine.checkpoint.has_mtp:
                begin = time.perf_counter()
                engine.stepper.draft(session, tokens[0], 1, 0.0)
                drafts.append(time.perf_counter() - begin)
    return {rows: median(found) for rows, found in seconds.items()}, median(drafts) if drafts else None


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, default=pocket_path())
    parser.add_argument("--rows", default="1,2,3,4,5")
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--context", type=int, default=512)
    asked = parser.parse_args()
    widths = [int(rows) for rows in asked.rows.split(",")]
    neighbours = Neighbours()
    found, draft = measure(asked.model, widths, asked.rounds, asked.context)
    print(f"{machine.sentence()}; others kept {neighbours.cores():.1f} cores busy")
    one = found[widths[0]]
    columns = {f"{rows}": found[rows] for rows in widths} | ({"draft": draft} if draft else {})
    print("rows   " + "".join(f"{name:>9}" for name in columns))
    print("ms     " + "".join(f"{1e3 * seconds:9.3f}" for seconds in columns.values()))
    print("times  " + "".join(f"{seconds / one:9.2f}" for seconds in columns.values()))


if __name__ == "__main__":
    main()
