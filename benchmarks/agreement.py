"""How closely Penstock agrees with transformers and with llama.cpp on tiny random models.

    python -m benchmarks.agreement [--seeds 3]

Needs the development dependencies.  Differences are shares of the logit range; KL is the mean over positions.
"""

import argparse
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

import penstock
from penstock.weights.convert import convert
from tests.oracles import hf, llamacpp
from tests.weights.official import load_back

Logits = NDArray[np.float32]
MIXES = ("f32", "f16", "bf16", "q8_0", "mxfp4")


def mean_kl(p: Logits, q: Logits) -> float:
    """Mean over positions of KL(softmax(p) ‖ softmax(q))."""

    def log_softmax(x: Logits) -> NDArray[np.float64]:
        x64 = x.astype(np.float64)
        x64 -= x64.max(-1, keepdims=True)
        norm: NDArray[np.float64] = np.log(np.exp(x64).sum(-1, keepdims=True))
        return x64 - norm

    a, b = log_softmax(p), log_softmax(q)
    return float((np.exp(a) * (a - b)).sum(-1).mean())


def row(table: Table, name: str, found: Logits, expected: Logits) -> None:
    distance = float(np.abs(found - expected).max() / np.ptp(expected))
    top1 = float((found.argmax(-1) == expected.argmax(-1)).mean())
    table.add_row(name, f"{distance:.1e}", f"{mean_kl(expected, found):.1e}", f"{top1:.1%}")


def feed(engine: penstock.Engine, ids: list[int], chunk: int) -> Logits:
    session = engine.session()
    parts = [session.feed(ids[at : at + chunk], logits="all") for at in range(0, len(ids), chunk)]
    return np.concatenate([part for part in parts if part is not None])


def against_transformers(seeds: int, length: int) -> Table:
    table = Table(
        "against transformers, float32", "max |Δ| / range", "mean KL", "top-1", title=f"{length} tokens"
    )
    config = hf.tiny_config()
    start = 0
    for _ in range(seeds):
        seed = hf.pick_seed(config, length, start)
        start = seed + 1
        model, ids = hf.random_model(config, seed), hf.random_ids(config, length, seed)
        expected = hf.logits(model, ids)
        with tempfile.TemporaryDirectory() as folder:
            hf.save(model, folder)
            engine = penstock.Engine(folder, kv_dtype="f32")
            for name, chunk in (("whole", length), ("chunks of 37", 37), ("token by token", 1)):
                row(table, f"seed {seed}, {name}", feed(engine, ids, chunk), expected)
    return table


def against_llamacpp(length: int) -> Table:
    """Files made by `convert`.  Nothing discrete in the model, so that activation rounding cannot flip a choice."""
    table = Table("mix", "max |Δ| / range", "mean KL", "top-1", title=f"GGUF files, {length} tokens")
    settings: dict[str, Any] = {"num_hash_layers": 6, "index_topk": 512}
    config = hf.tiny_config(**settings)
    model, ids = hf.random_model(config, 0), hf.random_ids(config, length, 0)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        hf.save(model, folder / "hf")
        for mix in MIXES:
            path = folder / f"{mix}.gguf"
            convert(folder / "hf", path, mix)
            stored = hf.logits(load_back(config, path), ids)  # transformers on the very weights of the file
            ours = feed(penstock.Engine(path, kv_dtype="f32"), ids, length)
            row(table, f"{mix}: Penstock / transformers on its weights", ours, stored)
            theirs = llamacpp.logits(path, ids, kv="f32")
            row(table, f"{mix}: llama.cpp / transformers on its weights", theirs, stored)
            row(table, f"{mix}: Penstock / llama.cpp", ours, theirs)
        half = feed(penstock.Engine(folder / "f32.gguf", kv_dtype="f16"), ids, length)
        row(
            table,
            "f32 file, f16 state: Penstock / llama.cpp",
            half,
            llamacpp.logits(folder / "f32.gguf", ids, kv="f16"),
        )
    return table


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.agreement")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--length", type=int, default=300)
    options = parser.parse_args()
    console = Console(width=110)
    console.print(against_transformers(options.seeds, options.length))
    console.print(against_llamacpp(options.length))


if __name__ == "__main__":
    main()
