"""What the low-precision simulation does to the answer, and what it costs.

    python -m benchmarks.low_precision [--seeds 6]

Compares, on tiny random models, the logits with and without `simulate_low_precision` beside two yardsticks: storing
the attention state in 16 bits, and storing the weights as Q8_0.
"""

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

import penstock
from benchmarks.agreement import mean_kl
from penstock.weights.convert import convert
from tests.oracles import hf

LENGTH = 300


def measure(folder: Path, seed: int, results: dict[str, list[tuple[float, float, float]]]) -> None:
    config = hf.tiny_config(head_dim=256, qk_rope_head_dim=64, swiglu_limit=10.0)
    model, ids = hf.random_model(config, seed), hf.random_ids(config, LENGTH, seed)
    hf.save(model, folder / "hf")
    convert(folder / "hf", folder / "q8.gguf", "q8_0", overwrite=True)
    exact = penstock.Engine(folder / "hf", kv_dtype="f32").session().feed(ids, logits="all")
    assert exact is not None
    cases = {
        "16-bit attention state": penstock.Engine(folder / "hf", kv_dtype="f16"),
        "Q8_0 weights": penstock.Engine(folder / "q8.gguf", kv_dtype="f32"),
        "simulated FP8/FP4": penstock.Engine(folder / "hf", kv_dtype="f32", simulate_low_precision=True),
        "simulated FP8/FP4, 16-bit state": penstock.Engine(folder / "hf", simulate_low_precision=True),
    }
    for name, engine in cases.items():
        begin = time.perf_counter()
        found = engine.session().feed(ids, logits="all")
        seconds = time.perf_counter() - begin
        assert found is not None
        same = float((found.argmax(-1) == exact.argmax(-1)).mean())
        results.setdefault(name, []).append((mean_kl(exact, found), same, seconds))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.low_precision")
    parser.add_argument("--seeds", type=int, default=6)
    options = parser.parse_args()
    results: dict[str, list[tuple[float, float, float]]] = {}
    for seed in range(options.seeds):
        with tempfile.TemporaryDirectory() as folder:
            measure(Path(folder), seed, results)
    table = Table(
        "against exact float32", "mean KL", "same top-1", "prefill", title=f"{options.seeds} models"
    )
    for name, rows in results.items():
        kl, same, seconds = np.array(rows).mean(axis=0)
        table.add_row(name, f"{kl:.1e}", f"{same:.1%}", f"{seconds * 1e3:.0f} ms")
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
