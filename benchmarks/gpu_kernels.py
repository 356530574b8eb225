"""Times the GPU's decode kernels on the shapes of DeepSeek-V4-Flash in the q2 mix, random weights, all 43 layers.

    python benchmarks/gpu_kernels.py [--rows 1,4,8] [--context 2048] [--layers 43] [--only NAMES] [--serial]
    PENSTOCK_CUDA_AS=8.6 python benchmarks/gpu_kernels.py     # with the kernels of an older card

Every line is a graph of one kind of kernel over all layers (so that nothing stays in the L2 cache), with its bytes,
time, bandwidth and share of the floor; `products` is all matrix products in one graph, `token` everything from the
tokens' embeddings to the next tokens.
"""

import argparse
import statistics
from collections.abc import Callable

import torch

from penstock.backend.base import Choice
from penstock.backend.cuda import layouts
from penstock.backend.cuda.attention import (
    Attention,
    CompressorState,
    Indexer,
    MakeTurns,
    Places,
    Remember,
    RowsAt,
)
from penstock.backend.cuda.deepseek_v4.batch import Launch
from penstock.backend.cuda.dense import Dense, slices_of
from penstock.backend.cuda.device import card
from penstock.backend.cuda.experts import Down, Up, takes_along
from penstock.backend.cuda.experts_many import ManyExperts, parts_floats
from penstock.backend.cuda.hyper import LeaveAndCollapse, LeaveAndEnter, MakeImage
from penstock.backend.cuda.inputs import DIGITS, HALVES, NEGATED, PIECE, DigitImage, DigitVectors, Image
from penstock.backend.cuda.launch import capture
from penstock.backend.cuda.plain import Embed, StoredRows
from penstock.backend.cuda.routing import Router
from penstock.backend.cuda.sample import CHOSEN, SampleRows, needs_scratch, on_card
from penstock.backend.cuda.weights import Packed, empty
from penstock.weights import types
from penstock.weights.types import WeightType

Tune = dict[str, int]

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
    work()
    (launch,) = capture(work).parts
    times: list[float] = []
    for _ in range(repeats + 3):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        launch()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times[3:])


class Slots:
    """Memory of `rows` sequences, filled with numbers around zero."""

    def __init__(self, rows: int, nbytes: int):
        self._memory = torch.zeros(rows, nbytes, dtype=torch.uint8, device="cuda")
        self._memory.view(torch.float16).normal_()
        self.states = self._memory.data_ptr() + nbytes * torch.arange(rows, device="cuda")
        self._used = 0

    def room(self, rows: int, row_bytes: int) -> RowsAt:
        at, self._used = self._used, self._used + -(-rows * row_bytes // 256) * 256
        assert self._used <= self._memory.shape[1]
        return RowsAt(at, row_bytes, rows)


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
        self.fn = [torch.randn(24, 4 * HIDDEN, device="cuda").mul(0.01).half() for _ in range(2)]
        if m:
            width = 1024 if m == 4 else 512
            self.compressor = [random_packed(f16, width, HIDDEN) for _ in range(2)]
        if m == 4:
            self.compressor += [random_packed(f16, rows, HIDDEN) for rows in (256, 256, 64)]
            self.index_q = random_packed(f16, 8192, RANK)


class Enter:
    """Into a sublayer, out of one with y or out of embeddings, as this card does it."""

    def __init__(
        self, out: torch.Tensor, fn: torch.Tensor, base: torch.Tensor, scale: torch.Tensor, mix: torch.Tensor,
        norm: torch.Tensor, image: Image, streams: torch.Tensor | None = None, y: torch.Tensor | None = None,
        before: torch.Tensor | None = None, embeddings: torch.Tensor | None = None,
        tokens: torch.Tensor | None = None,
    ):  # fmt: skip
        eps, rows = 1e-6, len(out)
        self._launches: list[Launch] = []
        if card().bulk:
            self._launches.append(
                LeaveAndEnter(
                    out,
                    fn,
                    base,
                    scale,
                    mix,
                    norm,
                    image,
                    eps,
                    eps,
                    20,
                    streams,
                    y,
                    before,
                    embeddings,
                    tokens,
                )
            )
            return
        if embeddings is not None and tokens is not None:
            table = StoredRows(embeddings, types.F16, *embeddings.shape)
            self._launches.append(Embed(table, tokens, out))
        now, own = out if streams is None else streams, mix if before is None else before
        x, parts = (
            torch.empty(rows, n, device="cuda") for n in (HIDDEN, LeaveAndCollapse.parts_floats(HIDDEN))
        )
        self._launches.append(LeaveAndCollapse(now, fn, base, scale, own, x, parts, eps, eps, 20, y))
        self._launches.append(MakeImage(x, image, norm, eps))

    def launch(self, overlap: bool) -> None:
        for each in self._launches:
            each.launch(overlap)


class Step:
    """The launches of one layer for `rows` rows at position `context`."""

    PRODUCTS = ("q_a", "q_image", "q_b", "out_a", "out_b", "router", "experts", "up", "down")

    def __init__(
        self,
        layer: Layer,
        after: Layer,
        index: int,
        rows: int,
        context: int,
        streams: list[torch.Tensor],
        places: Places,
        slots: "Slots",
        parts: torch.Tensor,
        tune: Tune,
    ):
        def buffer(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, device="cuda")

        self.layer, eps, m = layer, 1e-6, ratio(index)
        norm, norm_q = torch.rand(HIDDEN, device="cuda") + 0.5, torch.rand(RANK, device="cuda") + 0.5
        mixes, y = [buffer(rows, 24) for _ in range(2)], buffer(rows, HIDDEN)
        base, scale = torch.randn(24, device="cuda"), torch.rand(3, device="cuda")
        stages = tune.get("dense", 2)

        x = Image(rows, HIDDEN, DIGITS | (HALVES if m else 0))
        self.enter_a = Enter(streams[1], layer.fn[0], base, scale, mixes[1], norm, x, streams[0], y, mixes[0])
        first = [layer.q_a, layer.kv, *layer.compressor]
        outs = [buffer(rows, w.rows) for w in first]
        self.q_a = Dense(first, x, outs, rows, stages=stages)
        second = [layer.q_b, *([layer.index_q] if layer.index_q else [])]
        q = [buffer(rows, w.rows) for w in second]
        self.q_image: MakeImage | None = None
        if rows > PIECE:
            ready = Image(rows, RANK, DIGITS | (HALVES if layer.index_q else 0))
            self.q_image = MakeImage(outs[0], ready, norm_q, eps)
            self.q_b = Dense(second, ready, q, rows, stages=tune.get("q_b", stages))
        else:
            self.q_b = Dense(second, outs[0], q, rows, norm_q, eps, stages=tune.get("q_b", stages))

        window = slots.room(128 + 32, 2 * DIM)
        compressors, compressed, picks, counts = [], None, None, None
        if m:
            compressed = slots.room(context // m + 2, 2 * DIM)
            index_keys = slots.room(context // m + 2, 2 * 128)
            for i, keys, dim in ((1, compressed, DIM), (3, index_keys, 128))[: 2 if m == 4 else 1]:
                width = outs[1 + i].shape[1]
                frontier = slots.room(2 * m + 32, 8 * width)
                ape, small = buffer(m, width), torch.ones(dim, device="cuda")
                compressors.append(CompressorState(outs[1 + i], outs[2 + i], ape, small, frontier, keys))
        self.remember = Remember(outs[1], torch.ones(DIM, device="cuda"), window, places, compressors, eps)
        self.indexer: Indexer | None = None
        if m == 4:
            scores = buffer(rows, context // m + 2)
            picks = torch.zeros(rows, 512, dtype=torch.int32, device="cuda")
            counts = torch.zeros(rows, dtype=torch.int32, device="cuda")
            self.indexer = Indexer(
                q[1].view(rows, 64, 128), outs[6], index_keys, places, scores, picks, counts, m, early=True
            )
        heads = Image(rows, HIDDEN, DIGITS, GROUPS)
        many = Attention.many(rows, HEADS)
        self.attention = Attention(
            q[0].view(rows, HEADS, DIM), window, places, buffer(HEADS), 128, eps, m, compressed, picks,
            digits=heads, early=True, apart=buffer(rows, Attention.apart_floats(HEADS)) if many else None,
        )  # fmt: skip
        middle = DigitImage(rows, GROUPS * RANK)
        self.out_a = Dense(
            [layer.out_a],
            heads,
            [middle.values],
            rows,
            digits=middle,
            stages=stages,
        )
        self.out_b = Dense([layer.out_b], middle.image, [y], rows, ahead=layer.fn[1], stages=stages)

        x2 = Image(rows, HIDDEN, DIGITS | HALVES | (NEGATED if rows <= 4 else 0))
        self.enter_b = Enter(
            streams[0], layer.fn[1], base, scale, mixes[0], norm, x2, streams[1], y, mixes[1]
        )
        shared_acts, acts = DigitVectors(rows, WIDTH), DigitVectors(rows * 6, WIDTH, 64)
        along = takes_along(layer.router, layer.shared_up, layer.shared_down, layer.gate_up, rows)
        logits = torch.randn(*((slices_of(layer.router),) if along else ()), rows, EXPERTS, device="cuda")
        router = Router(logits, 6, 1.5, torch.randn(EXPERTS, device="cuda") * 0.1)
        self.router: Dense | None = None
        self.up: Up | None = None
        self.down: Down | None = None
        self.experts: ManyExperts | None = None
        if along:
            self.up = Up(
                layer.gate_up, router, x2, acts, rows, layer.router, layer.shared_up, shared_acts,
                stages=tune.get("up", 3),
            )  # fmt: skip
            ahead, stages = after.fn[0], tune.get("down", 3)
            self.down = Down(layer.down, router, acts, y, rows, layer.shared_down, shared_acts, ahead, stages)
        else:
            self.router = Dense([layer.router], x2, [logits], rows, late=True, stages=tune.get("router", 4))
            self.experts = ManyExperts(
                layer.gate_up, layer.down, router, [x2], acts, y, parts, 10.0, (layer.shared_down, shared_acts),
                layer.shared_up, ahead=after.fn[0],
            )  # fmt: skip
        self.chosen = router

    def names(self) -> tuple[str, ...]:
        middle = ("indexer",) if self.indexer else ()
        first = ("enter_a", "q_a", "q_image", "q_b", "remember", *middle, "attention", "out_a", "out_b")
        return (*first, "enter_b", "router", "experts", "up", "down")

    def launch(self, names: tuple[str, ...]) -> None:
        for name in names:
            kernel = getattr(self, name)
            if kernel is not None:
                kernel.launch(OVERLAP)


OVERLAP = True


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", default="1")
    parser.add_argument("--context", type=int, default=2048)
    parser.add_argument("--layers", type=int, default=43)
    parser.add_argument("--tune", default="", help="variants, e.g. dense=3,up=2/down=4")
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
            report(layers, head, rows, options.context, tune, options.only)


def report(layers: list[Layer], head: Packed, rows: int, context: int, tune: Tune, only: str) -> None:
    streams = [torch.randn(rows, 4, HIDDEN, device="cuda") for _ in range(2)]
    positions = torch.full((rows,), context, dtype=torch.int32, device="cuda")
    slots, frequencies = Slots(rows, len(layers) * (context * 640 + (2 << 20))), torch.rand(32, device="cuda")
    places = Places(positions, slots.states, frequencies, torch.zeros(rows, 32, 2, device="cuda"))
    turns = MakeTurns(places)
    following = [*layers[1:], layers[0]]
    parts = torch.empty(rows * parts_floats(HIDDEN, WIDTH, 6), device="cuda")
    steps = [
        Step(layer, after, i, rows, context, streams, places, slots, parts, tune)
        for i, (layer, after) in enumerate(zip(layers, following, strict=True))
    ]
    tokens = torch.zeros(rows, dtype=torch.int32, device="cuda")
    embeddings = torch.randn(VOCABULARY, HIDDEN, device="cuda").half()
    x, logits = Image(rows, HIDDEN, DIGITS), torch.empty(rows, VOCABULARY, device="cuda")
    coefficients, ones = torch.zeros(rows, 24, device="cuda"), torch.ones(HIDDEN, device="cuda")
    fn = torch.randn(4, 4 * HIDDEN, device="cuda").mul(0.01).half()
    no = torch.zeros(4, device="cuda")
    enter = Enter(streams[0], fn, no, ones[:1], coefficients, ones, x, embeddings=embeddings, tokens=tokens)
    final = Enter(streams[1], fn, no, ones[:1], coefficients, ones, x, streams=streams[0])
    last = Dense([head], x, [logits], rows, stages=tune.get("dense", 2))
    choices = on_card([(row, Choice(temperature=1.0, chance=0.5)) for row in logits])
    chosen = torch.zeros(rows * CHOSEN.itemsize, dtype=torch.uint8, device="cuda")
    scratch = torch.empty_like(logits) if needs_scratch(VOCABULARY) else None
    sample = SampleRows(choices, chosen, torch.empty_like(tokens), rows, VOCABULARY, scratch)

    def everything() -> None:
        turns.launch(OVERLAP)
        enter.launch(OVERLAP)
        for step in steps:
            step.launch(step.names())
        for kernel in (final, last, sample):
            kernel.launch(OVERLAP)

    everything()
    torch.cuda.synchronize()
    n, one = len(layers), layers[-1]
    used = sum(len(step.chosen.ids(rows).unique()) for step in steps) / n
    works: dict[str, tuple[int, Callable[[], None]]] = {}

    def every(*names: str) -> Callable[[], None]:
        def work() -> None:
            for step in steps:
                step.launch(names)

        return work

    for name in ("q_a", "q_b", "out_a", "out_b", "router"):
        if getattr(steps[0], name) is not None:
            works[name] = (sum(getattr(step, name).nbytes for step in steps), every(name))
    up, down = one.gate_up.nbytes * used / EXPERTS, one.down.nbytes * used / EXPERTS + one.shared_down.nbytes
    if steps[0].experts is not None:
        works["experts"] = (int(n * (up + one.shared_up.nbytes + down)), every("experts"))
        works["router, experts"] = (0, every("router", "experts"))  # which overlap
    else:
        beside = one.shared_up.nbytes + one.router.nbytes
        works["up"] = (int(n * (up + beside)), every("up"))
        works["up, down"] = (0, every("up", "down"))
        works["down"] = (int(n * down), every("down"))
    works["head"] = (head.nbytes, lambda: last.launch(OVERLAP))
    products = sum(size for name, (size, _) in works.items() if "," not in name)

    def all_products() -> None:
        for step in steps:
            step.launch(Step.PRODUCTS)
        last.launch(OVERLAP)

    works["products"] = (products, all_products)
    works["hyper"] = (2 * n * 24 * 4 * HIDDEN * 2, every("enter_a", "enter_b"))
    works["remember"] = (0, every("remember"))
    if steps[0].q_image is not None:
        works["q_image"] = (0, every("q_image"))
    works["indexer"] = (21 * rows * context // 4 * 256, every("indexer"))
    works["attention"] = (0, every("attention"))
    works["sample"] = (0, lambda: sample.launch(OVERLAP))
    small = works["hyper"][0] + works["indexer"][0]
    works["token"] = (products + small, everything)
    print(f"{rows} rows, {n} layers, context {context}, {used:.1f} experts a layer, {tune or 'usual stages'}")
    print(f"  {'kernel':10} {'MB':>9} {'ms':>8} {'µs/layer':>9} {'TB/s':>6} {'of floor':>8}")
    for name, (size, work) in works.items():
        if only and name not in only.split(","):
            continue
        ms = milliseconds(work)
        share = f"{size / BANDWIDTH * 1e3 / ms:8.0%}" if size else ""
        print(
            f"  {name:10} {size / 1e6:9.1f} {ms:8.3f} {ms / n * 1e3:9.1f} {size / ms / 1e9:6.2f} {share}",
            flush=True,
        )


if __name__ == "__main__":
    main()
