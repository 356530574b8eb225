"""What rounding costs: loss of several files on the same held-out conversations.

    python -m pocket.loss pocket-f32.gguf pocket.gguf

The first file is the yardstick.  Counted are the tokens that assistants say.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from random import Random

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from penstock.engine.engine import Engine
from pocket.batches import Document, encode
from pocket.data import MIXTURE, sample


def documents(engine: Engine, count: int) -> list[Document]:
    rng = Random("held-out/loss")
    return [
        encode(sample(skill, rng, length=500), engine.tokenizer) for skill in MIXTURE for _ in range(count)
    ]


def logits_of(engine: Engine, document: Document) -> NDArray[np.float32]:
    """What the engine expects at the places where an assistant speaks.  [said, vocab]"""
    logits = engine.session().feed(document.ids, logits="all")
    assert logits is not None
    said = np.asarray(document.weights[1:]) == 1
    return np.asarray(logits[:-1][said], np.float32)


def log_softmax(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    shifted = logits.astype(np.float64) - logits.max(-1, keepdims=True)
    result: NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    return result


def compare(files: Sequence[Path], count: int) -> Table:
    """Size and loss of each, and how far from the first."""
    table = Table("file", "MB", "loss", "KL from the first", "same first choice")
    yardstick: list[NDArray[np.float64]] = []
    for path in files:
        engine = Engine(path)
        loss, divergence, same, tokens = 0.0, 0.0, 0, 0
        for number, document in enumerate(documents(engine, count)):
            expected = log_softmax(logits_of(engine, document))
            targets = np.asarray(document.ids[1:])[np.asarray(document.weights[1:]) == 1]
            if path == files[0]:
                yardstick.append(expected)
            ideal = yardstick[number]
            loss -= expected[np.arange(len(targets)), targets].sum()
            divergence += (np.exp(ideal) * (ideal - expected)).sum()
            same += int((ideal.argmax(-1) == expected.argmax(-1)).sum())
            tokens += len(targets)
        size = f"{path.stat().st_size / 1e6:.1f}"
        table.add_row(
            path.name, size, f"{loss / tokens:.4f}", f"{divergence / tokens:.5f}", f"{same / tokens:.2%}"
        )
    return table


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m pocket.loss")
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--count", type=int, default=8, help="conversations per skill")
    options = parser.parse_args()
    Console(width=100).print(compare(options.files, options.count))


if __name__ == "__main__":
    main()
