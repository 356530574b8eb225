"""The larger ops: like the small ones they stand for, each row by itself to the bit, any number of threads."""

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from penstock.kernels import cpu, parts, reference
from penstock.kernels.ops import Ops
from penstock.kernels.parts import Rotation
from penstock.kv.memory import GrowingRows, Ring
from penstock.weights import types
from penstock.weights.types import WeightType
from tests.kernels.helpers import assert_close, assert_rows_stand_alone, assert_same_bits, random, threads
from tests.kernels.layers import EPS, LARGE, ODD, Layer, Sizes, Span

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
by_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)


@pytest.fixture(scope="module")
def layer(tmp_path_factory: pytest.TempPathFactory) -> Layer:
    return Layer(tmp_path_factory.mktemp("layer"), Sizes())


@pytest.fixture(scope="module", params=["usual", "odd", "large"])
def any_layer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Layer:
    folder = tmp_path_factory.mktemp("layer")
    if request.param == "usual":
        return Layer(folder, Sizes())
    if request.param == "odd":
        return Layer(folder, ODD, overlap=False)
    return Layer(folder, LARGE)


# ── ops without memory: (layer, rows) → run(ops, which rows) ──────────────────────────────────────────────────

Run = Callable[[Ops, slice], tuple[Tensor, ...]]


def _hyper(layer: Layer, rows: int, seed: int = 0) -> Run:
    streams = random(rows, layer.s.streams, layer.s.hidden, seed=seed, spread=2)
    y = random(rows, layer.s.hidden, seed=seed + 1)

    def run(ops: Ops, part: slice) -> tuple[Tensor, ...]:
        own = streams[part].clone()
        x, mix = ops.hyper_enter(own, layer.hyper)
        assert_same_bits(own, streams[part])
        ops.hyper_leave(y[part], own, mix)
        return x, mix, own

    return run


def _project(layer: Layer, rows: int, seed: int = 0) -> Run:
    x = random(rows, layer.s.hidden, seed=seed)
    return lambda ops, part: (ops.project(x[part], layer.inputs),)


def _queries(layer: Layer, rows: int, seed: int = 0) -> Run:
    projected = random(rows, layer.inputs.width, seed=seed)
    rotation = layer.rotation(rows)

    def run(ops: Ops, part: slice) -> tuple[Tensor, ...]:
        own = Rotation(rotation.cos[part], rotation.sin[part])
        q, index_q = ops.queries(projected[part], layer.queries, own)
        assert index_q is not None
        return q, index_q

    return run


def _output(layer: Layer, rows: int, seed: int = 0) -> Run:
    heads = random(rows, layer.s.heads, layer.s.dim, seed=seed)
    return lambda ops, part: (ops.output(heads[part], layer.output),)


def _routing(layer: Layer, rows: int, seed: int = 0) -> Run:
    x = random(rows, layer.s.hidden, seed=seed)
    tokens = torch.arange(rows) % 50
    return lambda ops, part: (
        *ops.choose_experts(x[part], tokens[part], layer.routing),
        *ops.choose_experts(x[part], tokens[part], layer.hashed),
    )


STATELESS = {
    "hyper": _hyper,
    "project": _project,
    "queries": _queries,
    "output": _output,
    "routing": _routing,
}
by_op = pytest.mark.parametrize("make", STATELESS.values(), ids=STATELESS)


@by_op
@pytest.mark.parametrize("rows", [1, 5, 33])
def test_like_the_small_ops(make: Callable[..., Run], any_layer: Layer, rows: int) -> None:
    run = make(any_layer, rows)
    for found, expected in zip(run(cpu, slice(None)), run(reference, slice(None)), strict=True):
        assert_close(found, expected, 2e-5)


@by_op
@settings(deadline=None, max_examples=15)
@given(rows=st.integers(1, 40), splits=st.lists(st.integers(1, 39), max_size=3), seed=st.integers(0, 99))
def test_every_row_stands_alone(
    make: Callable[..., Run], layer: Layer, rows: int, splits: list[int], seed: int
) -> None:
    run = make(layer, rows, seed)
    assert_rows_stand_alone(rows, lambda part: run(cpu, part), splits)


@by_op
@pytest.mark.parametrize("rows", [1, 2, 70])
def test_threads_never_matter(
    make: Callable[..., Run], rows: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    run = make(Layer(tmp_path_factory.mktemp("large"), LARGE, types.Q8_0), rows)
    with threads(1):
        alone = [result.clone() for result in run(cpu, slice(None))]
    for count in (2, 5):
        with threads(count):
            for found, expected in zip(run(cpu, slice(None)), alone, strict=True):
                assert_same_bits(found, expected)


@by_op
def test_no_rows(make: Callable[..., Run], layer: Layer) -> None:
    run = make(layer, 3)
    for none, some in zip(run(cpu, slice(0, 0)), run(cpu, slice(None)), strict=True):
        assert none.shape == (0, *some.shape[1:])


@by_op
@pytest.mark.parametrize("kind", [types.Q8_0, types.FP8_E4M3], ids=lambda kind: kind.name)
def test_quantised_weights(make: Callable[..., Run], kind: WeightType, tmp_path: Path) -> None:
    """Integer formats round their inputs to 16 bits: 2⁻¹⁶ of the largest of 256.  Hyper-connections show the most of
    it (1e-3 here), because these weights are large and make their softmax steep."""
    run = make(Layer(tmp_path, LARGE, kind), 9)
    for found, expected in zip(run(cpu, slice(None)), run(reference, slice(None)), strict=True):
        assert_close(found, expected, 5e-3)
    assert_rows_stand_alone(9, lambda part: run(cpu, part), [4])


@by_op
def test_weights_that_must_be_decoded_first(make: Callable[..., Run], tmp_path: Path) -> None:
    """Types without a native product take the small ops one after another."""
    run = make(Layer(tmp_path, Sizes(hidden=64, rank=32, heads=8, dim=64, groups=4), types.Q4_0), 6)
    for found, expected in zip(run(cpu, slice(None)), run(reference, slice(None)), strict=True):
        assert_close(found, expected, 2e-5)
    assert_rows_stand_alone(6, lambda part: run(cpu, part), [2])


@pytest.mark.parametrize("value", [0.0, 1e-30, 1e15, torch.nan, torch.inf])
def test_one_strange_row_stays_in_its_row(layer: Layer, value: float) -> None:
    streams = random(5, 4, layer.s.hidden)
    good = cpu.hyper_enter(streams, layer.hyper)
    streams[2] = value
    found = cpu.hyper_enter(streams, layer.hyper)
    keep = torch.arange(5) != 2
    for mine, before in zip(found, good, strict=True):
        assert_same_bits(mine[keep], before[keep])
    if value in (0.0, 1e-30, 1e15):
        for mine, expected in zip(found, reference.hyper_enter(streams, layer.hyper), strict=True):
            assert_close(mine, expected, 2e-5)
    projected = random(5, layer.inputs.width)
    rotation = layer.rotation(5)
    before, index_before = cpu.queries(projected, layer.queries, rotation)
    projected[2] = value
    after, index_after = cpu.queries(projected, layer.queries, rotation)
    assert index_before is not None
    assert index_after is not None
    assert_same_bits(after[keep], before[keep])
    assert_same_bits(index_after[keep], index_before[keep])


# ── ops with memory: a sequence fed in chunks ─────────────────────────────────────────────────────────────────


class Sequence:
    """One sequence's memory of a layer, fed by an op set chunk by chunk, in the middle of other rows."""

    def __init__(self, layer: Layer, ops: Ops, dtype: torch.dtype, total: int, seed: int = 0):
        s = layer.s
        self.layer, self.ops, self.position = layer, ops, 0
        self.projected = random(total, layer.inputs.width, seed=seed, spread=2)
        self.q = random(total, s.heads, s.dim, seed=seed + 1)
        self.index_q = random(total, s.index_heads, s.index_dim, seed=seed + 2)
        self.rotation = layer.rotation(total)
        self.window = Ring(s.window + 3, s.dim, dtype)
        width = layer.compression.ape.shape[1]
        self.frontier = Ring(2 * s.ratio + 3, 2 * width, torch.float32)
        self.rows = GrowingRows(total // s.ratio + 1, s.dim, dtype)
        self.index_rows = GrowingRows(total // s.ratio + 1, s.index_dim, dtype)
        self.index_rows.write(0, random(total // s.ratio + 1, s.index_dim, seed=seed + 3))

    def feed(self, count: int, before: int = 1, after: int = 2) -> Tensor:
        """The next `count` tokens, with rows of someone else around them → attention's result"""
        a, b = self.position, self.position + count

        def among(x: Tensor) -> Tensor:
            pad = x.new_full((1, *x.shape[1:]), 7.0)
            return torch.cat((*[pad] * before, x[a:b], *[pad] * after)).contiguous()

        ops, layer, span = self.ops, self.layer, Span(before, before + count, a)
        rotation = Rotation(among(self.rotation.cos), among(self.rotation.sin))
        projected, q, index_q = among(self.projected), among(self.q), among(self.index_q)
        ops.remember(projected, layer.keys, rotation, span, self.window)
        ops.compress(projected, layer.compression, span, self.frontier, self.rows)
        picks = ops.choose(index_q, projected, layer.choice, span, self.index_rows)
        ops.look(q, layer.sight, rotation, span, self.window, self.rows, picks)
        assert (q[:before] == 7).all()
        assert (q[before + count :] == 7).all()
        for ring in (self.window, self.frontier):
            ring.trim()
            ring.commit()
        self.position = b
        return q[before : before + count]

    def feed_all(self, total: int, cuts: list[int]) -> Tensor:
        edges = [0, *sorted({cut for cut in cuts if 0 < cut < total}), total]
        return torch.cat([self.feed(b - a) for a, b in itertools.pairwise(edges)])

    def state(self) -> list[Tensor]:
        """What counts for the future."""
        s, n = self.layer.s, self.position
        return [
            self.window.read(max(0, n - s.window), n),
            self.frontier.read(max(0, n - 2 * s.ratio), n),
            self.rows.view(n // s.ratio).clone(),
        ]


@by_dtype
def test_a_sequence_like_the_small_ops(any_layer: Layer, dtype: torch.dtype) -> None:
    total, cuts = 45, [1, 2, 9, 10, 31]
    found = Sequence(any_layer, cpu, dtype, total)
    expected = Sequence(any_layer, reference, dtype, total)
    # One step of the cache's type apart where a value falls between two.
    step = {torch.float32: 5e-6, torch.float16: 2e-3, torch.bfloat16: 2e-2}[dtype]
    assert_close(found.feed_all(total, cuts), expected.feed_all(total, cuts), step)
    for mine, other in zip(found.state(), expected.state(), strict=True):
        assert_close(mine.float(), other.float(), step)


@settings(deadline=None, max_examples=25)
@given(
    total=st.integers(1, 60),
    cuts=st.lists(st.integers(1, 59), max_size=8),
    dtype=st.sampled_from(DTYPES),
    seed=st.integers(0, 99),
)
def test_chunks_leave_no_trace(
    layer: Layer, total: int, cuts: list[int], dtype: torch.dtype, seed: int
) -> None:
    one_by_one = Sequence(layer, cpu, dtype, total, seed)
    expected = one_by_one.feed_all(total, list(range(total)))
    chunked = Sequence(layer, cpu, dtype, total, seed)
    assert_same_bits(chunked.feed_all(total, cuts), expected)
    for mine, other in zip(chunked.state(), one_by_one.state(), strict=True):
        assert_same_bits(mine.float(), other.float())


@pytest.mark.parametrize("chunk", [1, 3, 200])
def test_threads_leave_no_trace(chunk: int, tmp_path: Path) -> None:
    layer, total = Layer(tmp_path, LARGE), 200
    cuts = list(range(0, total, chunk))
    with threads(1):
        alone = Sequence(layer, cpu, torch.float16, total)
        expected = alone.feed_all(total, cuts)
    for count in (2, 5):
        with threads(count):
            other = Sequence(layer, cpu, torch.float16, total)
            assert_same_bits(other.feed_all(total, cuts), expected)
        for mine, theirs in zip(other.state(), alone.state(), strict=True):
            assert_same_bits(mine.float(), theirs.float())


def test_results_that_are_held_are_left_alone(layer: Layer) -> None:
    """Memory of single-row results serves again, but not while somebody has the result."""
    first, second = random(1, layer.s.hidden), random(1, layer.s.hidden, seed=1)
    held = cpu.project(first, layer.inputs)
    before = held.clone()
    other = cpu.project(second, layer.inputs)
    assert_same_bits(held, before)
    assert not torch.equal(other, held)
    address = other.data_ptr()
    del other
    assert cpu.project(first, layer.inputs).data_ptr() == address


def test_halves_are_rounded_like_torch_does(layer: Layer) -> None:
    """Values between two halves, ties, subnormals and overflow, through a norm that only scales."""
    s = layer.s
    for dtype in (torch.float16, torch.bfloat16):
        keys = parts.Keys(0, torch.logspace(-9, 5, s.dim), EPS, simulate=False)
        x = random(64, s.dim)
        ring, span = Ring(64, s.dim, dtype), Span(0, 64, 0)
        rotation = Rotation(torch.ones(64, 0), torch.zeros(64, 0))
        cpu.remember(x, keys, rotation, span, ring)
        assert torch.equal(ring.read(0, 64), cpu.rms_norm(x, keys.norm, EPS).to(dtype))


def test_a_failed_single_step_replaces_nothing_that_counts(layer: Layer) -> None:
    """One row goes straight into the ring, before the step has succeeded: the last window − 1 rows must survive."""
    sequence = Sequence(layer, cpu, torch.float16, 40)
    sequence.window = Ring(layer.s.window, layer.s.dim, torch.float16)  # no spare places at all
    sequence.frontier = Ring(2 * layer.s.ratio, 2 * layer.compression.ape.shape[1], torch.float32)
    for _ in range(30):
        sequence.feed(1)
    before = sequence.window.read(30 - layer.s.window + 1, 30)
    sequence.feed(1)  # and then it fails: the position stays
    sequence.position = 30
    assert_same_bits(sequence.window.read(30 - layer.s.window + 1, 30), before)
    clean = Sequence(layer, cpu, torch.float16, 40)
    clean.feed_all(30, [])
    assert_same_bits(sequence.feed(10), clean.feed(10))


def test_one_broken_token_is_seen_by_later_ones_only(layer: Layer) -> None:
    good = Sequence(layer, cpu, torch.float16, 30).feed_all(30, [])
    broken = Sequence(layer, cpu, torch.float16, 30)
    broken.projected[12] = torch.nan
    found = broken.feed_all(30, [])
    assert_same_bits(found[:12], good[:12])
    assert found[12].isnan().all()


def test_wrong_shapes_are_refused(layer: Layer) -> None:
    s = layer.s
    sequence = Sequence(layer, cpu, torch.float16, 8)
    projected, rotation = sequence.projected, sequence.rotation
    ring, rows, span = sequence.window, sequence.rows, Span(0, 8, 0)
    streams = random(2, s.streams, s.hidden)
    for call in (
        lambda: cpu.hyper_enter(streams[:, :3], layer.hyper),
        lambda: cpu.hyper_leave(random(2, s.hidden + 1), streams, random(2, 24)),
        lambda: cpu.project(random(2, s.hidden + 1), layer.inputs),
        lambda: cpu.queries(random(2, 5), layer.queries, layer.rotation(2)),
        lambda: cpu.queries(projected, layer.queries, layer.rotation(2)),
        lambda: cpu.remember(projected, layer.keys, rotation, Span(0, 9, 0), ring),
        lambda: cpu.remember(projected, layer.keys, rotation, span, sequence.frontier),
        lambda: cpu.compress(projected, layer.compression, span, ring, rows),
        lambda: cpu.compress(projected, layer.compression, Span(0, 8, 100), sequence.frontier, rows),
        lambda: cpu.choose(sequence.index_q, projected, layer.choice, Span(0, 8, 100), sequence.index_rows),
        lambda: cpu.look(sequence.q, layer.sight, rotation, Span(0, 8, 100), ring, rows, None),
        lambda: cpu.output(random(2, s.heads + 1, s.dim), layer.output),
        lambda: cpu.choose_experts(random(2, s.hidden), torch.zeros(3, dtype=torch.long), layer.routing),
    ):
        with pytest.raises(ValueError, match=r"[a-z_]+:"):
            call()
