"""Times the GPU's decode kernels on the shapes of DeepSeek-V4-Flash in the q2 mix, random weights, all 43 layers.

    python benchmarks/gpu_kernels.py [--rows 1,4,8] [--layers 43] [--only NAME]

Every line is a graph of that kernel over all layers (so that nothing stays in the L2 cache), with its bytes, time,
bandwidth and share of the floor; the last lines are whole chains in one graph with overlapping launches.
"""

import argparse
import statistics
from collections.abc import Callable

import torch

from penstock.backend.cuda import layouts
from penstock.backend.cuda.launch import capture
from penstock.backend.cuda.products import Dense, DigitVectors, Down, GateUp, Router
from penstock.backend.cuda.weights import Packed, empty
from penstock.weights import types
from penstock.weights.types import WeightType

BANDWIDTH = 4.54e12  # bytes a second, measured by reading on an H200
HIDDEN, HEADS, DIM, RANK, GROUPS, WIDTH, EXPERTS, VOCABULARY = 4096, 64, 512, 1024, 8, 2048, 256, 129280
# Where a cell keeps its float16 scales: (offset, count)
SCALES = {types.Q8_0: (4096, 128), types.IQ2_XXS: (1088, 16), types.Q2_K: (1280, 32), types.Q4_K: (2304, 32)}


def ratio(layer: int) -> int:
    return 0 if layer < 2 else 4 if layer % 2 == 0 else 128


def random_packed(kind: WeightType, rows: int, columns: int, count: int = 1, paired: bool = False) -> Packed:
    """Random codes with scales that make sense."""
    packed = empty(kind, rows, columns, count, paired)
    cells = packed.data.view(-1, layouts.LAYOUTS[kind].cell_bytes)
    if kind is types.F16:
        packed.data.view(torch.float16).normal_(0, 0.02)
        return packed
    pattern = torch.randint(0, 256, (min(len(cells), 4096), cells.shape[1]), dtype=torch.uint8, device="cuda")
    if kind is types.MXFP4:
        pattern[:, 2048:2176] = 120
    else:
        at, count = SCALES[kind]
        scales = torch.rand(len(pattern), count, device="cuda") * 0.002 + 0.001
        pattern[:, at : at + 2 * count] = scales.half().view(torch.uint8)
    for start in range(0, len(cells), len(pattern)):
        part = cells[start : start + len(pattern)]
        part.copy_(pattern[: len(part)])
    return packed


def milliseconds(work: Callable[[], None], repeats: int = 15) -> float:
    graph = capture(work)
    times = []
    for _ in range(repeats + 3):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times[3:])


class Layer:
    """One layer's products for `rows` rows, over weights that all numbers of rows share."""

    def __init__(self, index: int):
        q8, f16 = types.Q8_0, types.F16
        self.q_a, self.kv = random_packed(q8, RANK, HIDDEN), random_packed(q8, DIM, HIDDEN)
        self.q_b = random_packed(q8, HEADS * DIM, RANK)
        self.out_a = random_packed(q8, RANK, HIDDEN, GROUPS)
        self.out_b = random_packed(q8, HIDDEN, GROUPS * RANK)
        self.router = random_packed(f16, EXPERTS, HIDDEN)
        self.shared_up = random_packed(q8, WIDTH, HIDDEN, paired=True)
        self.shared_down = random_packed(q8, HIDDEN, WIDTH)
        self.gate_up = random_packed(types.IQ2_XXS, WIDTH, HIDDEN, EXPERTS, paired=True)
        self.down = random_packed(types.Q2_K, HIDDEN, WIDTH, EXPERTS)
        m = ratio(index)
        self.compressor: list[Packed] = []
        self.index_q: Packed | None = None
        if m:
            width = 1024 if m == 4 else 512
            self.compressor = [random_packed(f16, width, HIDDEN) for _ in range(2)]
        if m == 4:
            self.compressor += [random_packed(f16, rows, HIDDEN) for rows in (256, 256, 64)]
            self.index_q = random_packed(f16, 8192, RANK)


class Step:
    """The launches of one layer."""

    def __init__(self, layer: Layer, rows: int, seed: int, tune: dict[str, int]):
        def buffer(width: int) -> torch.Tensor:
            return torch.randn(rows, width, device="cuda")

        self.layer, self.rows = layer, rows
        x, heads, norm = buffer(HIDDEN), buffer(HEADS * DIM), torch.rand(HIDDEN, device="cuda") + 0.5
        qr, q, y = buffer(RANK), buffer(HEADS * DIM), buffer(HIDDEN)
        middle = DigitVectors(rows, GROUPS * RANK)
        eps = 1e-6
        first = [layer.q_a, layer.kv, *layer.compressor]
        stages = tune.get("dense", 2)
        self.q_a = Dense(first, x, [qr, *(buffer(m.rows) for m in first[1:])], rows, norm, eps, stages=stages)
        second = [layer.q_b, *([layer.index_q] if layer.index_q else [])]
        outs = [q, *(buffer(m.rows) for m in second[1:])]
        self.q_b = Dense(
            second, qr, outs, rows, norm[:RANK].contiguous(), eps, stages=tune.get("q_b", stages)
        )
        self.out_a = Dense([layer.out_a], heads, [middle.values], rows, digits=middle, stages=stages)
        self.out_b = Dense([layer.out_b], middle, [y], rows, stages=stages)
        logits = torch.randn(rows, EXPERTS, device="cuda")
        shared_acts, acts = DigitVectors(rows, WIDTH), DigitVectors(rows * 6, WIDTH, 64)
        bias = torch.randn(EXPERTS, generator=torch.Generator("cuda").manual_seed(seed), device="cuda")
        router = Router(logits, 6, 1.5, bias)
        both = [layer.shared_up, layer.router]
        self.shared = Dense(
            both, x, [shared_acts.values, logits], rows, norm, eps, shared_acts, 10.0, stages=stages
        )
        self.gate_up = GateUp(layer.gate_up, router, x, acts, rows, norm, eps, stages=tune.get("up", 3))
        self.down = Down(
            layer.down, router, acts, y, rows, layer.shared_down, shared_acts, stages=tune.get("down", 3)
        )

    def chain(self) -> None:
        for kernel in (self.q_a, self.q_b, self.out_a, self.out_b, self.shared, self.gate_up, self.down):
            kernel.launch(OVERLAP)


OVERLAP = True


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", default="1")
    parser.add_argument("--layers", type=int, default=43)
    parser.add_argument("--tune", default="", help="ring stages, e.g. dense=3,up=2")
    parser.add_argument("--only", default="")
    parser.add_argument("--serial", action="store_true", help="no overlap between kernels")
    options = parser.parse_args()
    global OVERLAP
    OVERLAP = not options.serial
    torch.manual_seed(0)
    layers = [Layer(i) for i in range(options.layers)]
    head = random_packed(types.Q8_0, VOCABULARY, HIDDEN)
    for variant in options.tune.split("/"):
        tune = {k: int(v) for k, v in (item.split("=") for item in variant.split(",") if item)}
        for rows in (int(r) for r in options.rows.split(",")):
            report(layers, head, rows, tune, options.only)


def report(layers: list[Layer], head: Packed, rows: int, tune: dict[str, int], only: str) -> None:
    steps = [Step(layer, rows, i, tune) for i, layer in enumerate(layers)]
    x, logits = torch.randn(rows, HIDDEN, device="cuda"), torch.empty(rows, VOCABULARY, device="cuda")
    last = Dense(
        [head], x, [logits], rows, torch.ones(HIDDEN, device="cuda"), 1e-6, stages=tune.get("dense", 2)
    )
    n, used = len(layers), len({*range(6 * rows)}) / EXPERTS  # random bias: rows of one layer mostly agree
    one = layers[-1]
    works: dict[str, tuple[int, Callable[[], None]]] = {}

    def every(name: str) -> Callable[[], None]:
        return lambda: [getattr(step, name).launch(OVERLAP) for step in steps] and None

    for name in ("q_a", "q_b", "out_a", "out_b", "shared"):
        works[name] = (sum(getattr(step, name).nbytes for step in steps), every(name))
    works["gate_up"] = (int(n * one.gate_up.nbytes * used), every("gate_up"))
    works["down"] = (int(n * (one.down.nbytes * used + one.shared_down.nbytes)), every("down"))
    works["head"] = (head.nbytes, lambda: last.launch(OVERLAP))

    def everything() -> None:
        for step in steps:
            step.chain()
        last.launch(OVERLAP)

    works["chain"] = (sum(size for size, _ in works.values()), everything)
    print(f"{rows} rows, {n} layers, {tune or 'usual stages'}")
    print(f"  {'kernel':10} {'MB':>9} {'ms':>8} {'TB/s':>6} {'of floor':>8}")
    for name, (size, work) in works.items():
        if only and name not in only.split(","):
            continue
        ms = milliseconds(work)
        print(
            f"  {name:10} {size / 1e6:9.1f} {ms:8.3f} {size / ms / 1e9:6.2f} {size / BANDWIDTH * 1e3 / ms:8.0%}",
            flush=True,
        )


if __name__ == "__main__":
    main()
