"""What a decoded token costs besides the arithmetic on weights: a model as deep as the published one, with matrices
so small that almost nothing is left but the way from one to the next.

    python -m benchmarks.overhead                  43 layers of the published pattern
    python -m benchmarks.overhead --layers 11 --json

Tokens are generated greedily through `engine.generate`, sampling and text included.  Native time is what passes
inside the native library, less what calls that do nothing take; all the rest (Python, numpy, the way into it)
counts as Python.  Times are those of the best round, which on a busy machine is one that was not interrupted.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import penstock
from penstock.native import library
from penstock.weights.synth import synth
from penstock.weights.widths import WIDTHS

PROMPT: Final = 200  # past the windows and past the indexer's top-k, so that every path is taken
TOKENS: Final = 64  # per round: a multiple of the smaller ratio, so that rounds are alike


@dataclass
class Result:
    layers: int
    threads: int
    token_ms: float
    native_ms: float
    python_ms: float
    python_us_per_layer: float
    native_calls: float  # per token


class Meter:
    """Adds up the time inside the native library."""

    def __init__(self) -> None:
        self.nanoseconds = self.calls = 0

    def wrap(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: object) -> object:
            begin = time.perf_counter_ns()
            result = function(*arguments)
            self.nanoseconds += time.perf_counter_ns() - begin
            self.calls += 1
            return result

        return timed

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Every call of the library goes through this meter inside."""
        native = library.native()
        names = [name for name, value in vars(native).items() if type(value).__name__ == "_FuncPtr"]
        before = {name: getattr(native, name) for name in names}
        for name, function in before.items():
            setattr(native, name, self.wrap(function))
        try:
            yield
        finally:
            for name, function in before.items():
                setattr(native, name, function)

    def idle_call(self) -> float:
        """Nanoseconds that a call shows here although nothing happens in it."""
        nothing = self.wrap(library.native().ps_products)  # of no weights
        best = float("inf")
        for _ in range(20):
            self.nanoseconds = 0
            for _ in range(1000):
                nothing(None, 0, 1 << 40, 1, 1, 1 << 40, 1 << 40, 1)
            best = min(best, self.nanoseconds / 1000)
        self.nanoseconds = self.calls = 0
        return best


def generate_round(
    engine: penstock.Engine, prompt: Sequence[int], meter: Meter
) -> tuple[float, float, float]:
    """Seconds per token, nanoseconds in the library per token, and calls of it per token."""
    sampling = penstock.Sampling(temperature=0, ignore_eos=True)
    steps = engine.generate(prompt, 4 + TOKENS, sampling)
    for _ in range(4):
        next(steps)
    meter.nanoseconds = meter.calls = 0
    begin = time.perf_counter()
    for _ in range(TOKENS):
        next(steps)
    taken = time.perf_counter() - begin
    return taken / TOKENS, meter.nanoseconds / TOKENS, meter.calls / TOKENS


def measure(engine: penstock.Engine, rounds: int) -> Result:
    prompt = [(7 * number + 3) % 256 for number in range(PROMPT)]
    meter = Meter()
    idle = meter.idle_call()
    total = native = float("inf")
    calls = 0.0
    for _ in range(rounds):
        total = min(total, 1e3 * generate_round(engine, prompt, meter)[0])
        with meter.watching():
            _, nanoseconds, calls = generate_round(engine, prompt, meter)
        native = min(native, (nanoseconds - calls * idle) / 1e6)
    layers = engine.config.layer_count
    python = total - native
    return Result(
        layers=layers,
        threads=engine.options.thread_count,
        token_ms=total,
        native_ms=native,
        python_ms=python,
        python_us_per_layer=1e3 * python / layers,
        native_calls=calls,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Time per decoded token that is not arithmetic on weights.")
    parser.add_argument("--layers", type=int, default=WIDTHS["flash"].layers)
    parser.add_argument("--vocab", type=int, default=WIDTHS["flash"].base.vocab_size)
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "small.gguf"
        ratios = WIDTHS["flash"].ratios(options.layers)
        synth(path, width="tiny", ratios=ratios, hash_layers=min(3, options.layers), vocab=options.vocab)
        result = measure(penstock.Engine(path, threads=options.threads), options.rounds)
    if options.json:
        print(json.dumps(asdict(result)))
        return
    print(f"{result.layers} layers, vocabulary of {options.vocab:,}, {result.threads} threads")
    print(f"{result.token_ms:8.2f} ms per token")
    print(f"{result.native_ms:8.2f} ms of it in the native library, in {result.native_calls:.0f} calls")
    print(f"{result.python_ms:8.2f} ms around it: {result.python_us_per_layer:.0f} µs per layer")


if __name__ == "__main__":
    main()
