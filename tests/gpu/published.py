"""Every launch of a step of the published model, made for a card that is not here: its numbers stand in for it, and
tensors have no memory.  What is launched is written down instead: kernels, with what they are compiled for."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import pytest
import torch
from torch.overrides import TorchFunctionMode

from penstock.backend.cuda import device, launch, prefill_products, weights
from penstock.backend.cuda.attention import (
    Attention,
    CompressorState,
    Indexer,
    MakeTurns,
    Places,
    Remember,
    RowsAt,
)
from penstock.backend.cuda.deepseek_v4.batch import Launch, pieces, smaller_pieces
from penstock.backend.cuda.deepseek_v4.long_memory import LongMemory
from penstock.backend.cuda.dense import Dense, slices_of
from penstock.backend.cuda.device import SHARED_LIMITS, Card
from penstock.backend.cuda.experts import Down, Up, shared_comes_along, takes_along, up_forms
from penstock.backend.cuda.experts_many import ManyExperts, parts_floats
from penstock.backend.cuda.hyper import LeaveAndCollapse, LeaveAndEnter, MakeImage
from penstock.backend.cuda.inputs import (
    DIGITS,
    FLOATS,
    MAX_ROWS,
    PIECE,
    DigitImage,
    DigitVectors,
    Image,
    Input,
    few_rows,
    forms_of,
)
from penstock.backend.cuda.layouts import FP8_128, LAYOUTS
from penstock.backend.cuda.placed import DENSE_KINDS, EXPERT_KINDS, expert_kind
from penstock.backend.cuda.plain import Embed, LeaveStreams, StoredRows
from penstock.backend.cuda.routing import Router
from penstock.backend.cuda.sample import SampleRows, needs_scratch
from penstock.backend.cuda.slots import Pull, formats_of
from penstock.backend.cuda.weights import Packed
from penstock.weights import types
from penstock.weights.tensor import TensorInfo
from penstock.weights.types import WeightType

ROWS = (1, 2, 3, 4, 8, 16, 32)  # that a step is padded to
HIDDEN, WIDTH, EXPERTS, USED, VOCABULARY = 4096, 2048, 256, 6, 129_280
HEADS, DIM, Q_RANK, GROUPS, O_RANK, INDEX_HEADS, INDEX_DIM, PICKS = 64, 512, 1024, 8, 1024, 64, 128, 512
MULTIPROCESSORS = {(8, 0): 108, (8, 6): 28, (8, 9): 128, (9, 0): 132, (10, 0): 148, (12, 0): 170}


def a_card(capability: tuple[int, int]) -> Card:
    shared = SHARED_LIMITS.get(capability, SHARED_LIMITS[9, 0])
    return Card(0, "a double", capability, MULTIPROCESSORS[capability], shared, 24 << 30)


class Compiled(NamedTuple):
    source: str
    options: tuple[str, ...]


class _Absent(TorchFunctionMode):
    """Tensors of a card are shapes and nothing else, at an address that is not null."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        kwargs = dict(kwargs or {})
        if func is torch.Tensor.data_ptr:
            return 1 << 30
        if func is torch.Tensor.cuda:
            return args[0].to("meta")
        if func is torch.Tensor.pin_memory:
            return args[0]
        if str(kwargs.get("device", "")).startswith("cuda"):
            kwargs["device"] = "meta"
        return func(*args, **kwargs)


@contextmanager
def standing_in(card: Card) -> Iterator[set[Compiled]]:
    """The card, and what is compiled for it.  Every kernel that is asked for has to be one that it can launch."""
    found: set[Compiled] = set()

    class Module(launch.Module):
        def __init__(self, source: str, *options: str):
            self._source = source
            found.add(Compiled(source, options))

        def kernel(self, name: str, shared: int = 0, cluster: int = 1) -> launch.Kernel:
            assert shared <= card.shared_limit, f"{name}: {shared:,} bytes of shared memory"
            assert cluster == 1 or card.bulk, f"{name}: a cluster"
            assert cluster <= card.cluster_limit
            return super().kernel(name, shared, cluster)

    caches = (launch.module, launch.kernel, weights.iq2_xxs_grid, prefill_products._kernel)
    with pytest.MonkeyPatch.context() as patch, _Absent():
        patch.setattr(device, "_card", lambda _: card)
        patch.setattr(torch.cuda, "current_device", lambda: 0)
        patch.setattr(launch, "Module", Module)
        for cached in caches:
            cached.cache_clear()
        try:
            yield found
        finally:
            for cached in caches:
                cached.cache_clear()


def matrix(kind: WeightType, rows: int, columns: int, count: int = 1, paired: bool = False) -> Packed:
    return weights.empty(kind, rows, columns, count, paired)


def floats(*shape: int) -> torch.Tensor:
    return torch.empty(shape, device="cuda")


def numbers(*shape: int) -> torch.Tensor:
    return torch.empty(shape, dtype=torch.int32, device="cuda")


def places(rows: int) -> Places:
    states = torch.empty(rows, dtype=torch.int64, device="cuda")
    return Places(numbers(rows), states, floats(32), floats(rows, 32, 2))


def images(rows: int, width: int, forms: int, size: int) -> list[tuple[int, int, Image]]:
    return [(a, b, Image(b - a, width, forms)) for a, b in pieces(rows, size)]


def attention(kind: WeightType, small: WeightType, rows: int) -> list[Launch]:
    """Of a layer with compressor and indexer.  kind: of the large matrices; small: of the others"""
    inputs = [matrix(kind, n, HIDDEN) for n in (Q_RANK, DIM)]
    inputs += [
        matrix(small, n, HIDDEN) for n in (2 * DIM, 2 * DIM, 2 * INDEX_DIM, 2 * INDEX_DIM, INDEX_HEADS)
    ]
    queries = [matrix(kind, HEADS * DIM, Q_RANK), matrix(small, INDEX_HEADS * INDEX_DIM, Q_RANK)]

    def project(size: int) -> list[Launch]:
        forms = forms_of([m.kind for m in inputs], min(size, rows))
        made: list[Launch] = []
        for a, b, image in images(rows, HIDDEN, forms, size):
            n = b - a
            made.append(MakeImage(floats(n, HIDDEN), image, floats(HIDDEN), 1e-6))
            made.append(Dense(inputs, image, [floats(n, m.rows) for m in inputs], n))
            made += query(n)
            made += attend(n)
        return made

    def query(n: int) -> list[Launch]:
        outs, x, norm = [floats(n, m.rows) for m in queries], floats(n, Q_RANK), floats(Q_RANK)
        if n <= PIECE:
            return [Dense(queries, x, outs, n, norm, 1e-6)]
        image = Image(n, Q_RANK, forms_of([m.kind for m in queries], n))
        return [MakeImage(x, image, norm, 1e-6), Dense(queries, image, outs, n)]

    def attend(n: int) -> list[Launch]:
        where, rows_at, frontier = places(n), RowsAt(0, 2 * DIM, 1 << 14), RowsAt(0, 16 * DIM, 256)
        kept = [
            CompressorState(
                floats(n, 2 * dim), floats(n, 2 * dim), floats(4, 2 * dim), floats(dim), frontier, rows_at
            )
            for dim in (DIM, INDEX_DIM)
        ]
        picks = numbers(n, PICKS)
        apart = floats(n, Attention.apart_floats(HEADS)) if Attention.many(n, HEADS) else None
        digits = forms_of([kind], n) == DIGITS
        image = Image(n, HEADS * DIM // GROUPS, DIGITS, GROUPS) if digits else None
        out = None if digits else floats(n, HEADS * DIM)
        given = (
            floats(n, HEADS, DIM),
            rows_at,
            where,
            floats(HEADS),
            128,
            1e-6,
            4,
            rows_at,
            picks,
            out,
            image,
        )
        scores = (floats(n, 1 << 14), picks, numbers(n))
        gates = floats(n, INDEX_HEADS)
        x: Input | None = out if image is None else image
        assert x is not None
        return [
            MakeTurns(where),
            Remember(floats(n, DIM), floats(DIM), rows_at, where, kept, 1e-6),
            Indexer(floats(n, INDEX_HEADS, INDEX_DIM), gates, rows_at, where, *scores, 4, early=True),
            Attention(*given, early=True, apart=apart),
            *output(x, n),
        ]

    def output(x: Input, n: int) -> list[Launch]:
        first, last = (
            matrix(kind, O_RANK, HEADS * DIM // GROUPS, GROUPS),
            matrix(kind, HIDDEN, GROUPS * O_RANK),
        )
        y, ahead = floats(n, HIDDEN), floats(24, 4 * HIDDEN)
        if forms_of([kind], 8) == DIGITS:
            middle = DigitImage(n, GROUPS * O_RANK)
            return [
                Dense([first], x, [middle.values], n, digits=middle),
                Dense([last], middle.image, [y], n, ahead=ahead),
            ]
        between = floats(n, GROUPS * O_RANK)
        return [Dense([first], x, [between], n), Dense([last], between, [y], n, ahead=ahead)]

    return smaller_pieces(project)


def experts(
    up: WeightType, down: WeightType, shared: WeightType, router: WeightType, rows: int, divided: bool
) -> list[Launch]:
    """A layer's.  divided: among the card and the host"""
    gate_up, packed_down = matrix(up, WIDTH, HIDDEN, EXPERTS, True), matrix(down, HIDDEN, WIDTH, EXPERTS)
    beside, beside_down = matrix(shared, WIDTH, HIDDEN, 1, True), matrix(shared, HIDDEN, WIDTH)
    gate, where = matrix(router, EXPERTS, HIDDEN), numbers(EXPERTS) if divided else None
    comes_along = shared_comes_along(beside, beside_down, gate_up)

    def make(size: int) -> list[Launch]:
        forms = forms_of([shared, router], min(size, rows)) | up_forms(up, min(size, rows))
        some = images(rows, HIDDEN, forms | (FLOATS if divided else 0), size)
        if divided or rows <= few_rows():
            return [each for a, b, image in some for each in layer([(0, b - a, image)], b - a)]
        return layer(some, rows)

    def layer(some: list[tuple[int, int, Image]], n: int) -> list[Launch]:
        along = not divided and takes_along(gate, beside, beside_down, gate_up, n)
        logits = floats(slices_of(gate), n, EXPERTS) if along else floats(n, EXPERTS)
        chosen, acts = Router(logits, USED, 1.5, floats(EXPERTS)), DigitVectors(n * USED, WIDTH, 64)
        inner, out, made = DigitVectors(n, WIDTH), floats(n, HIDDEN), list[Launch]()
        if not along:
            for a, b, image in some:
                made.append(
                    Dense([gate], image, [logits[a:b]], b - a, late=not divided, stages=2 if divided else 4)
                )
        if not comes_along:
            for a, b, image in some:
                hidden = floats(b - a, WIDTH)
                made.append(Dense([beside], image, [hidden], b - a, limit=10.0))
                made.append(Dense([beside_down], hidden, [floats(b - a, HIDDEN)], b - a))
        if n > few_rows():
            parts = floats(n * parts_floats(HIDDEN, WIDTH, USED))
            given = (gate_up, packed_down, chosen, [image for _, _, image in some], acts, out, parts, 10.0)
            shares = (beside_down, inner) if comes_along else None
            own_up = beside if comes_along and not divided else None
            return [*made, ManyExperts(*given, shares, own_up, 10.0, where)]
        image = some[0][2]
        last = (beside_down, inner) if comes_along else (None, None)
        if along:
            up_launch = Up(gate_up, chosen, image, acts, n, gate, beside, inner, 10.0, 10.0)
        else:
            up_launch = Up(gate_up, chosen, image, acts, n, limit=10.0, places=where)
            if comes_along:
                made.append(Dense([beside], image, [inner.values], n, digits=inner, limit=10.0))
        return [*made, up_launch, Down(packed_down, chosen, acts, out, n, *last)]

    return smaller_pieces(make, PIECE if divided else MAX_ROWS)


def ends(kind: WeightType, rows: int) -> list[Launch]:
    """Embedding, hyper-connections, head and the choice of tokens."""
    head = matrix(kind, VOCABULARY, HIDDEN)

    def make(size: int) -> list[Launch]:
        return [
            Dense([head], image, [floats(b - a, VOCABULARY)], b - a)
            for a, b, image in images(rows, HIDDEN, forms_of([kind], min(size, rows)), size)
        ]

    embeddings = StoredRows(floats(VOCABULARY, HIDDEN).half(), types.F16, VOCABULARY, HIDDEN)
    given: list[Launch] = [Embed(embeddings, numbers(rows), floats(rows, 4, HIDDEN))]
    scratch = floats(rows, VOCABULARY) if needs_scratch(VOCABULARY) else None
    given.append(SampleRows(numbers(64 * rows), numbers(24 * rows), numbers(rows), rows, VOCABULARY, scratch))
    for fn in (floats(24, 4 * HIDDEN).half(), floats(24, 4 * HIDDEN)):
        mix, base, scale = floats(rows, 24), floats(24), floats(3)
        streams, y = floats(rows, 4, HIDDEN), floats(rows, HIDDEN)
        if device.card().bulk:
            image = Image(rows, HIDDEN, DIGITS)
            given.append(
                LeaveAndEnter(
                    streams, fn, base, scale, mix, floats(HIDDEN), image, 1e-6, 1e-6, 20, streams, y, mix
                )
            )
        else:
            parts = floats(rows, LeaveAndCollapse.parts_floats(HIDDEN))
            given.append(LeaveAndCollapse(streams, fn, base, scale, mix, y, parts, 1e-6, 1e-6, 20, y))
        given.append(LeaveStreams(streams, y, mix))
    return [*given, *smaller_pieces(make)]


def step(rows: int) -> list[Launch]:
    """Of every type that files have: as published, and each alone."""
    found: list[Launch] = []
    for kind in sorted(DENSE_KINDS, key=str):
        found += attention(kind, types.F16 if kind is types.Q8_0 else kind, rows)
        found += ends(kind, rows)
    found += attention(types.Q8_0, types.BF16, rows)
    pairs = [(kind, kind) for kind in sorted(EXPERT_KINDS, key=str)] + [(types.IQ2_XXS, types.Q2_K)]
    for up, down in pairs:
        for divided in (False, True):
            found += experts(up, down, types.Q8_0, types.F16, rows, divided)
    found += experts(types.MXFP4, types.MXFP4, FP8_128, types.BF16, rows, False)
    found += experts(types.Q4_K, types.Q4_K, types.Q4_K, types.F32, rows, False)
    for source in ("repack.cu", "tiers.cu", "plain.cu", "dspark.cu"):
        launch.module(source)
    for up, down in pairs:
        pull(up, down)
    pull(types.FP4_E2M1, types.FP4_E2M1)
    return found


def pull(up: WeightType, down: WeightType) -> None:
    """What brings experts to slots."""
    nowhere, infos = cast(Any, None), []
    for kind, rows, columns in ((up, WIDTH, HIDDEN), (up, WIDTH, HIDDEN), (down, HIDDEN, WIDTH)):
        nbytes, scale = rows * kind.row_bytes(columns), None
        if kind is types.FP4_E2M1:
            scale = TensorInfo("s", types.E8M0, (rows, columns // 32), nowhere, 0, rows * columns // 32)
        infos.append(TensorInfo("w", kind, (rows, columns), nowhere, 0, nbytes, scale))
    placed = [expert_kind(info) for info in infos]
    slots = SimpleNamespace(
        gate_up=matrix(placed[0], WIDTH, HIDDEN, EXPERTS, True),
        down=matrix(placed[2], HIDDEN, WIDTH, EXPERTS),
        module=launch.module("tiers.cu", *formats_of(infos)),
    )
    shared = Pull(cast(Any, slots), infos, numbers(EXPERTS, 3)).shared
    for name in ("pull_experts", "receive_rows"):
        slots.module.kernel(name, shared)


def prompt() -> None:
    """What long steps take, of every type."""
    LongMemory(cast(Any, None)).prepare(True)
    prefill_products.prepare((kind, paired) for kind in LAYOUTS for paired in (False, True))
