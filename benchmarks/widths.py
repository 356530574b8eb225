"""What a step costs by its number of rows, of one sequence: a token and drafts after it.

    python -m benchmarks.widths                      # the pocket model
    python -m benchmarks.widths --model FILE --rows 1,2,3,4,5 --rounds 100

Rounds take widths in turn, so that whoever disturbs the machine disturbs all; medians count.  Of every step all
tokens are kept, as if all drafts had been right.  The last columns are drafts in a row of the model's draft block,
where it has one.

ideal  how many times as fast decoding would be if all drafts were right and took no time
block  the same with the time that the block takes
"""

import argparse
import time
from pathlib import Path
from statistics import median

import numpy as np

from benchmarks import machine
from benchmarks.machine import Neighbours
from penstock import Engine
from penstock.engine.draft_record import MOST
from penstock.pocket import pocket_path


def measure(
    path: Path, widths: list[int], rounds: int, context: int
) -> tuple[dict[int, float], dict[int, float]]:
    """Seconds by rows, and by drafts in a row."""
    engine = Engine(path, context=context + rounds * sum(widths) + max(widths) + 1, draft="auto")
    session, numbers = engine.session(), np.random.default_rng(0)

    def ids(count: int) -> list[int]:
        return [int(token) for token in numbers.integers(16, engine.config.vocab_size, count)]

    session.feed(ids(context))
    seconds: dict[int, list[float]] = {rows: [] for rows in widths}
    drafts: dict[int, list[float]] = {rows - 1: [] for rows in widths if 1 < rows <= MOST["mtp"] + 1}
    for _ in range(rounds):
        for rows in widths:
            tokens = ids(rows)
            begin = time.perf_counter()
            engine.stepper.advance([(session, tokens, rows)], judge=lambda _number, logits: len(logits))
            seconds[rows].append(time.perf_counter() - begin)
            if engine.checkpoint.has_mtp and rows - 1 in drafts:
                begin = time.perf_counter()
                engine.stepper.draft(session, tokens[0], rows - 1, 0.0)
                drafts[rows - 1].append(time.perf_counter() - begin)
    return medians(seconds), medians(drafts)


def medians(seconds: dict[int, list[float]]) -> dict[int, float]:
    return {number: median(found) for number, found in seconds.items() if found}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, default=pocket_path())
    parser.add_argument("--rows", default="1,2,3,4,5")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--context", type=int, default=512)
    asked = parser.parse_args()
    widths = [int(rows) for rows in asked.rows.split(",")]
    neighbours = Neighbours()
    found, drafts = measure(asked.model, widths, asked.rounds, asked.context)
    print(f"{machine.sentence()}; others kept {neighbours.cores():.1f} cores busy")
    one = found[widths[0]]
    columns = {f"{rows}": found[rows] for rows in widths}
    columns |= {f"{number} drafts": seconds for number, seconds in drafts.items()}
    print("rows   " + "".join(f"{name:>9}" for name in columns))
    print("ms     " + "".join(f"{1e3 * seconds:9.3f}" for seconds in columns.values()))
    print("times  " + "".join(f"{seconds / one:9.2f}" for seconds in columns.values()))
    print("ideal  " + "".join(f"{rows * one / found[rows]:9.2f}" for rows in widths))
    if drafts:
        spent = {rows: found[rows] + drafts.get(rows - 1, 0.0) for rows in widths}
        known = [rows for rows in widths if rows == 1 or rows - 1 in drafts]
        print("block  " + "".join(f"{rows * one / spent[rows]:9.2f}" for rows in known))


if __name__ == "__main__":
    main()
