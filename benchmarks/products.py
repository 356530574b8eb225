"""How fast products with stored weights are, next to how fast this machine reads memory.

    python -m benchmarks.products                  every type, 1 and 512 rows, 1 thread and all
    python -m benchmarks.products --types Q4_K,IQ2_XXS --json

One row: matrices of 256 MB in all, used in turn, so that no weight is in a cache.  Many rows: one small matrix.
Times are those of the fastest call, which on a busy machine is one that was not interrupted.  PENSTOCK_ISA chooses
the instruction set.
"""

import argparse
import ctypes
import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np

from penstock.backend.cpu.weights import KINDS
from penstock.bench.bandwidth import read_bandwidth
from penstock.machine.cpu import read_cpu
from penstock.native.library import instruction_set, native
from penstock.native.structs import Weight
from penstock.weights import types
from penstock.weights.types import WeightType

COLUMNS: Final = 4096
BYTES: Final = 256 << 20
NAMES: Final = {kind.name: kind for kind in KINDS}


@dataclass
class Result:
    type: str
    rows: int
    threads: int
    seconds: float  # for one matrix
    gigabytes: float  # of weights per second
    share: float  # of the memory bandwidth measured with as many threads
    gigamacs: float  # 10⁹ multiply-adds per second
    per_cycle: float  # multiply-adds per cycle and thread


def best(rounds: int, calls: Sequence[Callable[[], object]]) -> float:
    """Seconds of the fastest of all calls, made in turn `rounds` times."""
    fastest = math.inf
    for _ in range(rounds):
        for call in calls:
            begin = time.perf_counter()
            call()
            fastest = min(fastest, time.perf_counter() - begin)
    return fastest


def clock() -> float:
    """Cycles per nanosecond."""
    steps = 100_000
    return 3 * steps / best(200, [lambda: native().ps_chain(steps)]) / 1e9


def halves(kind: WeightType, raw: np.ndarray[Any, np.dtype[np.uint8]]) -> None:
    """Gives every block an ordinary scale: random bits would make some of them NaN."""
    offsets = {types.Q8_0: (0,), types.Q4_K: (0, 2), types.Q2_K: (80, 82), types.IQ2_XXS: (0,)}.get(kind, ())
    blocks = raw.reshape(-1, kind.block_bytes)
    for at in offsets:
        blocks[:, at : at + 2] = np.array([0.01], np.float16).view(np.uint8)
    if kind is types.MXFP4:
        blocks[:, 0] = 120
    if kind in (types.F16, types.BF16, types.F32):
        blocks[:, -1] = 0x3C  # positive numbers around one
    if kind is types.FP8_E4M3:
        raw &= 0x3F


def matrices(kind: WeightType, out: int, count: int) -> tuple[list[Weight], list[Any]]:
    """Random matrices of one type, and what has to stay alive for them."""
    size = kind.row_bytes(COLUMNS) * out
    rng = np.random.default_rng(0)
    raw = np.frombuffer(rng.bytes(size), np.uint8).copy()
    halves(kind, raw)
    data = np.tile(raw, count)
    scale = np.full(out * COLUMNS // 32, 120, np.uint8)
    return [
        Weight(data.ctypes.data + i * size, scale.ctypes.data, KINDS[kind], out, COLUMNS)
        for i in range(count)
    ], [data, scale]


def measure(kind: WeightType, rows: int, threads: int, rounds: int, read: float, cycles: float) -> Result:
    n = (8 << 20) // kind.row_bytes(COLUMNS) if rows == 1 else 128
    size = kind.row_bytes(COLUMNS) * n
    weights, keep = matrices(kind, n, BYTES // size if rows == 1 else 1)
    x = np.random.default_rng(1).standard_normal((rows, COLUMNS), np.float32)
    out = np.empty((rows, n), np.float32)
    outs, strides = (ctypes.c_void_p * 1)(out.ctypes.data), (ctypes.c_int64 * 1)(n)
    kernel = native().ps_products

    def call(weight: Weight) -> Callable[[], object]:
        place = (ctypes.c_void_p * 1)(ctypes.addressof(weight))
        return lambda: kernel(place, 1, x.ctypes.data, COLUMNS, rows, outs, strides, threads)

    seconds = best(rounds if rows == 1 else 5 * rounds, [call(weight) for weight in weights])
    del keep
    macs = rows * n * COLUMNS / seconds
    return Result(
        *(kind.name, rows, threads, seconds, size / seconds / 1e9, size / seconds / read),
        *(macs / 1e9, macs / 1e9 / cycles / threads),
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.products", description=__doc__)
    parser.add_argument("--types", default=",".join(NAMES), help="comma-separated")
    parser.add_argument("--rows", default="1,512", help="comma-separated")
    parser.add_argument("--threads", default=f"1,{read_cpu().usable}", help="comma-separated")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    counts = sorted({int(count) for count in options.threads.split(",")})
    read = {count: read_bandwidth(count, BYTES, options.rounds) for count in counts}
    cycles = clock()
    results = [
        measure(NAMES[name], rows, threads, options.rounds, read[threads], cycles)
        for rows in map(int, options.rows.split(","))
        for name in options.types.split(",")
        for threads in counts
    ]
    if options.json:
        head = {"isa": instruction_set(), "clock": cycles, "read": read}
        print(json.dumps({**head, "results": [asdict(result) for result in results]}, indent=1))
        return
    print(f"instruction set {instruction_set()}, about {cycles:.2f} GHz; memory reads ", end="")
    print(", ".join(f"{read[count] / 1e9:.1f} GB/s with {count} threads" for count in counts))
    print(
        f"{'type':9} {'rows':>5} {'threads':>7} {'ms':>8} {'GB/s':>6} {'of read':>7} {'GMAC/s':>7} {'MAC/cycle':>9}"
    )
    for r in results:
        print(
            f"{r.type:9} {r.rows:5} {r.threads:7} {r.seconds * 1e3:8.3f} {r.gigabytes:6.1f} {r.share:7.0%} "
            f"{r.gigamacs:7.1f} {r.per_cycle:9.1f}"
        )


if __name__ == "__main__":
    main()
