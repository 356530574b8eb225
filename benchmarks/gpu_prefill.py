"""Times the GPU's kernels for many rows on the shapes of DeepSeek-V4-Flash in the q2 mix, random weights.

    python -m benchmarks.gpu_prefill [--rows 512,2048,8192] [--context 0,65536] [--parts]

A chunk of so many rows that follows so many tokens goes through one layer of every kind; the time of 43 layers is
that of 2 sliding ones, 21 with an indexer and 20 with long windows.  `parts`: each kind of kernel alone, with its
operations, bytes and share of what an H200 reaches (790 TFLOP/s, 4.54 TB/s).
"""

import argparse
import statistics
from collections.abc import Callable

import torch

from benchmarks.gpu_kernels import (
    BANDWIDTH,
    DIM,
    EXPERTS,
    GROUPS,
    HEADS,
    HIDDEN,
    RANK,
    WIDTH,
    Layer,
)
from penstock.backend.cuda.attention import CompressorState, RowsAt
from penstock.backend.cuda.prefill_attention import (
    LongPlaces,
    attend,
    commit_frontier,
    commit_window,
    keep_rows,
    pool_rows,
    select_rows,
)
from penstock.backend.cuda.prefill_experts import Groups, run_experts
from penstock.backend.cuda.prefill_hyper import collapse, leave_and_mix, partial_sums
from penstock.backend.cuda.prefill_products import (
    HalfRows,
    make_halves,
    multiply,
    multiply_groups,
    multiply_swiglu,
)
from penstock.backend.cuda.weights import Packed

FLOPS = 790e12  # a second, measured with bf16 matrix products on an H200
LAYERS = {0: 2, 4: 21, 128: 20}  # how many have this ratio
COUNT, EPS, TOPK, WINDOW = 6, 1e-6, 512, 128


def milliseconds(work: Callable[[], None], repeats: int = 5) -> float:
    work()
    times: list[float] = []
    for _ in range(repeats):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        work()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times)


class Chunk:
    """One layer of ratio m for a chunk of `rows` rows behind `context` tokens; parts in their order."""

    def __init__(self, layer: Layer, m: int, rows: int, context: int):
        def buffer(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, device="cuda")

        self.layer, self.m, self.rows, self.context = layer, m, rows, context
        self.streams, self.y = buffer(rows, 4, HIDDEN), buffer(rows, HIDDEN)
        self.partial = buffer(*partial_sums(rows, HIDDEN, torch.float16))
        self.coefficients, self.norm = (
            torch.rand(rows, 24, device="cuda") * 0.25,
            torch.rand(HIDDEN, device="cuda") + 0.5,
        )
        self.base, self.scale = buffer(24), torch.rand(3, device="cuda")
        self.x, self.x2 = HalfRows.empty(rows, HIDDEN), HalfRows.empty(rows, HIDDEN, 2)
        self.first = [layer.q_a, layer.kv, *layer.compressor]
        self.outs = [buffer(rows, w.rows) for w in self.first]
        self.q_norm, self.rank = torch.rand(RANK, device="cuda") + 0.5, HalfRows.empty(rows, RANK)
        self.second = [layer.q_b, *([layer.index_q] if layer.index_q else [])]
        self.q = [buffer(rows, self.second[0].rows).half(), *(buffer(rows, w.rows) for w in self.second[1:])]
        total = context + rows
        window = RowsAt(0, 1024, 257)
        at = window.at + window.capacity * window.apart
        self.compressors: list[CompressorState] = []
        self.index_keys: RowsAt | None = None
        for i, dim in ((1, DIM), (3, 128))[: 2 if m == 4 else 1 if m else 0]:
            width = self.outs[1 + i].shape[1]
            frontier = RowsAt(at, 8 * width, 2 * m + 130)
            keys = RowsAt(frontier.at + frontier.capacity * frontier.apart, 2 * dim, total // m + 1)
            at = keys.at + keys.capacity * keys.apart
            ape, norm = buffer(m, width), torch.ones(dim, device="cuda")
            self.compressors.append(
                CompressorState(self.outs[1 + i], self.outs[2 + i], ape, norm, frontier, keys)
            )
        self.memory = buffer(at // 4 + 1).half().repeat(2)[: at // 2 + 1].contiguous()
        where = (self.memory.data_ptr(), self.memory.data_ptr(), context, rows)
        self.places = LongPlaces.of([where], torch.rand(32, device="cuda"))
        self.window, self.fresh = window, torch.empty(rows, DIM, dtype=torch.float16, device="cuda")
        self.kv_norm, self.sinks = torch.ones(DIM, device="cuda"), buffer(HEADS)
        self.picks = self.counts = None
        if m == 4:
            self.picks = torch.zeros(rows, TOPK, dtype=torch.int32, device="cuda")
            self.counts = torch.zeros(rows, dtype=torch.int32, device="cuda")
            self.scores = torch.empty(rows, total // m + 1, device="cuda")
        self.heads = HalfRows.empty(rows, HEADS * DIM)
        self.middle, self.middle_halves = buffer(rows, GROUPS * RANK), HalfRows.empty(rows, GROUPS * RANK)
        self.logits, self.bias = buffer(rows, EXPERTS), buffer(EXPERTS) * 0.1
        self.groups = Groups(rows, COUNT, EXPERTS)
        self.acts, self.terms = HalfRows.empty(rows * COUNT, WIDTH), buffer(rows * COUNT, HIDDEN)
        self.inner, self.shared = HalfRows.empty(rows, WIDTH), buffer(rows, HIDDEN)

    def parts(self) -> dict[str, tuple[float, float, Callable[[], None]]]:
        """name → (operations, bytes, work)"""
        rows, layer, m = self.rows, self.layer, self.m
        keys = self.seen()

        def products(*matrices: Packed) -> float:
            return 2.0 * rows * sum(p.rows * p.columns * p.count * (2 if p.paired else 1) for p in matrices)

        def enter(number: int, x: HalfRows) -> Callable[[], None]:
            def work() -> None:
                leave_and_mix(self.streams, self.y, self.coefficients, layer.fn[number], self.partial)
                collapse(
                    self.streams, self.partial, self.base, self.scale, self.coefficients, self.norm, x, EPS, EPS, 20
                )  # fmt: skip

            return work

        def queries() -> None:
            make_halves(self.outs[0], self.rank, self.q_norm, EPS)
            multiply(self.second, self.rank, self.q)

        def state() -> None:
            keep_rows(self.outs[1], self.kv_norm, self.places, self.fresh, EPS)
            for compressor in self.compressors:
                pool_rows(compressor, self.places, EPS)

        def indexer() -> None:
            if self.picks is not None and self.counts is not None:
                select_rows(
                    self.q[1].view(rows, 64, 128), self.outs[6], self.compressors[1].rows, self.places, self.scores,
                    self.picks, self.counts, m,
                )  # fmt: skip

        def attention() -> None:
            attend(
                self.q[0].view(rows, HEADS, DIM), self.rank_scales(), self.fresh, self.window, self.places,
                self.sinks, WINDOW, EPS,
                self.heads, m, self.compressors[0].rows if m else None, self.picks, self.counts,
            )  # fmt: skip

        def out_b() -> None:
            make_halves(self.middle, self.middle_halves)
            multiply([layer.out_b], self.middle_halves, [self.y])

        def commit() -> None:
            commit_window(self.fresh, self.window, self.places)
            for compressor in self.compressors:
                commit_frontier(compressor, self.places)

        def route() -> None:
            multiply([layer.router], self.x2, [self.logits], planes=2)
            self.groups.route(self.logits, 1.5, self.bias)

        def shared() -> None:
            multiply_swiglu(layer.shared_up, self.x2, self.inner, 10.0)
            multiply([layer.shared_down], self.inner, [self.shared])

        def experts() -> None:
            run_experts(
                layer.gate_up,
                layer.down,
                self.x2,
                self.groups,
                10.0,
                self.acts,
                self.terms,
                self.shared,
                self.y,
            )

        stream_bytes = rows * 4 * HIDDEN * 4.0
        routed = 2.0 * rows * COUNT * 3 * HIDDEN * WIDTH
        visible = (self.context + rows / 2) / m if m else 0
        return {
            "enter attention": (0, 3 * stream_bytes, enter(0, self.x)),
            "q_a, kv, …": (products(*self.first), 0, lambda: multiply(self.first, self.x, self.outs)),
            "q_b, …": (products(*self.second), 0, queries),
            "state": (0, 0, state),
            "indexer": (rows * visible * 64 * 128 * 2 if m == 4 else 0, 0, indexer),
            "attention": (rows * HEADS * keys * DIM * 4, 0, attention),
            "out_a": (
                products(layer.out_a),
                0,
                lambda: multiply_groups(layer.out_a, self.heads, self.middle),
            ),
            "out_b": (products(layer.out_b), 0, out_b),
            "commit": (0, 0, commit),
            "enter experts": (0, 3 * stream_bytes, enter(1, self.x2)),
            "router": (products(layer.router), 0, route),
            "shared expert": (products(layer.shared_up, layer.shared_down), 0, shared),
            "routed experts": (routed, layer.gate_up.nbytes + layer.down.nbytes, experts),
        }

    def rank_scales(self) -> torch.Tensor:
        assert self.rank.scales is not None
        return self.rank.scales

    def seen(self) -> float:
        """Keys of a row, on average"""
        positions = torch.arange(self.context, self.context + self.rows, dtype=torch.float64) + 1
        near = positions.clamp(max=WINDOW)
        far = (positions / self.m).floor() if self.m else torch.zeros_like(positions)
        return float((near + (far.clamp(max=TOPK) if self.m == 4 else far)).mean())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", default="512,2048,8192")
    parser.add_argument("--context", default="0")
    parser.add_argument("--parts", action="store_true")
    options = parser.parse_args()
    torch.manual_seed(0)
    layers = {0: Layer(0), 4: Layer(2), 128: Layer(3)}
    for context in (int(c) for c in options.context.split(",")):
        for rows in (int(r) for r in options.rows.split(",")):
            report(layers, rows, context, options.parts)


def report(layers: dict[int, Layer], rows: int, context: int, parts: bool) -> None:
    total = 0.0
    for m, layer in layers.items():
        chunk = Chunk(layer, m, rows, context)
        works = chunk.parts()

        def whole(works: dict[str, tuple[float, float, Callable[[], None]]] = works) -> None:
            for _, _, work in works.values():
                work()

        ms = milliseconds(whole)
        total += LAYERS[m] * ms
        print(f"{rows} rows behind {context}, ratio {m}: {ms:.2f} ms a layer", flush=True)
        if parts:
            for name, (flops, size, work) in works.items():
                own = milliseconds(work)
                share = max(flops / FLOPS, size / BANDWIDTH) * 1e3 / own
                print(
                    f"    {name:16} {own:8.3f} ms {flops / 1e9:9.1f} GFLOP {size / 1e6:8.1f} MB"
                    f" {flops / own / 1e9:6.0f} TFLOP/s {share:6.0%} of floor",
                    flush=True,
                )
        del chunk, works
        torch.cuda.empty_cache()
    print(
        f"{rows} rows behind {context}: 43 layers {total:.1f} ms, {rows / total * 1e3:,.0f} tok/s", flush=True
    )


if __name__ == "__main__":
    main()
