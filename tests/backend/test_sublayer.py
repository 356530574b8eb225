"""A whole attention sublayer in one call: the very bits of its steps, whatever shares the batch."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from penstock.kernels import composed, cpu, parts, reference
from penstock.kernels.ops import Ops
from penstock.kernels.parts import Rotation
from penstock.kv.memory import GrowingRows, Ring
from penstock.weights import types
from tests.kernels.helpers import assert_close, assert_same_bits, random, threads
from tests.kernels.layers import LARGE, Layer, Sizes, Span

TOTAL = 60
KINDS = {
    "sliding": {"compressed": False},
    "compressed": {"indexed": False},
    "sparse": {},
}
by_kind = pytest.mark.parametrize("kind", KINDS)


class Composed:
    """The native steps, one by one."""

    def attention(self, *arguments: object) -> Tensor:
        return composed.attention(cpu, *arguments)  # type: ignore[arg-type]


class CompressorState:
    def __init__(self, s: Sizes, width: int, dim: int):
        self.frontier = Ring(2 * s.ratio + 3, 2 * width, torch.float32)
        self.rows = GrowingRows(TOTAL // s.ratio, dim, torch.float16)


class State:
    """One sequence's memory of one layer, its inputs, and where it stands."""

    def __init__(self, layer: Layer, seed: int = 0):
        s = layer.s
        self.x = random(TOTAL, s.hidden, seed=seed)
        self.position = 0
        self.prepared: object = None
        self.window = Ring(s.window + 3, s.dim, torch.float16)
        self.compressor = CompressorState(s, layer.compression.ape.shape[1], s.dim)
        self.indexer = CompressorState(s, 2 * s.index_dim, s.index_dim)

    def commit(self, count: int) -> None:
        self.position += count
        for ring in (self.window, self.compressor.frontier, self.indexer.frontier):
            ring.commit()


def feed(
    ops: Ops | Composed, layer: Layer, part: parts.Attention, work: Sequence[tuple[State, int]]
) -> list[Tensor]:
    """The next tokens of several sequences together → each one's result"""
    spans, rows = [], 0
    positions: list[int] = []
    for state, count in work:
        spans.append(Span(rows, rows + count, state.position))
        positions += range(state.position, state.position + count)
        rows += count
    x = torch.cat([state.x[state.position : state.position + count] for state, count in work])
    whole = layer.rotation(TOTAL)
    rotation = Rotation(whole.cos[positions], whole.sin[positions])
    out = ops.attention(x, part, rotation, spans, [state for state, _ in work]).clone()
    for state, count in work:
        state.commit(count)
    return [out[span.start : span.stop] for span in spans]


@pytest.fixture(scope="module")
def layer(tmp_path_factory: pytest.TempPathFactory) -> Layer:
    return Layer(tmp_path_factory.mktemp("layer"), Sizes())


@by_kind
def test_the_bits_of_its_steps(kind: str, layer: Layer) -> None:
    found, expected, plain = State(layer), State(layer), State(layer)
    part = layer.attention(**KINDS[kind])
    for count in (1, 1, 9, 1, 20, 2, 1, 25):
        (mine,) = feed(cpu, layer, part, [(found, count)])
        (steps,) = feed(Composed(), layer, part, [(expected, count)])
        (slow,) = feed(reference, layer, part, [(plain, count)])
        assert_same_bits(mine, steps)
        assert_close(mine, slow, 5e-3)  # rows are kept in half precision


@by_kind
@settings(deadline=None, max_examples=15)
@given(steps=st.lists(st.tuples(st.integers(0, 2), st.integers(1, 7)), min_size=1, max_size=12))
def test_who_shares_the_batch_leaves_no_trace(kind: str, layer: Layer, steps: list[tuple[int, int]]) -> None:
    """Three sequences together, in any chunks, and each by itself token by token."""
    part = layer.attention(**KINDS[kind])
    together, alone = [[State(layer, seed) for seed in range(3)] for _ in range(2)]
    for leader, count in steps:
        work = [(state, count if number == leader else 1) for number, state in enumerate(together)]
        if any(state.position + count > TOTAL for state, count in work):
            break
        for (state, size), found in zip(work, feed(cpu, layer, part, work), strict=True):
            twin = alone[together.index(state)]
            expected = torch.cat([feed(cpu, layer, part, [(twin, 1)])[0] for _ in range(size)])
            assert_same_bits(found, expected)


@by_kind
def test_more_rows_than_have_queries_at_a_time(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two sequences, the second across the edge between two blocks of rows."""
    monkeypatch.setattr(f"{__name__}.TOTAL", 900)
    layer = Layer(tmp_path, Sizes())
    part = layer.attention(**KINDS[kind])
    found, expected = [[State(layer, seed) for seed in range(2)] for _ in range(2)]
    first, second = feed(cpu, layer, part, list(zip(found, (300, 700), strict=True)))
    for mine, state, count in ((first, expected[0], 300), (second, expected[1], 700)):
        alone = torch.cat([feed(cpu, layer, part, [(state, size)])[0] for size in (count - 130, 1, 129)])
        assert_same_bits(mine, alone)


@by_kind
@pytest.mark.parametrize("weights", [types.Q8_0, types.Q4_0], ids=lambda kind: kind.name)
def test_threads_and_stored_types(kind: str, weights: types.WeightType, tmp_path: Path) -> None:
    """Q4_0 has to be decoded first, so the steps are taken one by one there."""
    layer = Layer(tmp_path, LARGE, weights)
    part = layer.attention(**KINDS[kind])
    results = []
    for count in (1, 2, 5):
        with threads(count):
            state = State(layer)
            results.append(torch.cat([feed(cpu, layer, part, [(state, n)])[0] for n in (30, 1, 1)]))
    assert_same_bits(results[1], results[0])
    assert_same_bits(results[2], results[0])


def test_between_two_sublayers(layer: Layer) -> None:
    for rows in (1, 5):
        streams, y = random(rows, 4, layer.s.hidden), random(rows, layer.s.hidden, seed=1)
        twin = streams.clone()
        _, mix = cpu.hyper_enter(streams, layer.hyper)
        mix = mix.clone()
        found = [result.clone() for result in cpu.hyper_between(y, streams, mix, layer.hyper)]
        cpu.hyper_leave(y, twin, mix)
        assert_same_bits(streams, twin)
        for mine, expected in zip(found, cpu.hyper_enter(twin, layer.hyper), strict=True):
            assert_same_bits(mine, expected)
        with pytest.raises(ValueError, match="hyper_leave"):
            cpu.hyper_between(y[:, :-1], streams, mix, layer.hyper)


def test_what_does_not_fit_is_refused(layer: Layer) -> None:
    part, state = layer.attention(), State(layer)
    x, rotation = random(4, layer.s.hidden), layer.rotation(4)
    good = [Span(0, 4, 0)]
    calls: tuple[Callable[[], Tensor], ...] = (
        lambda: cpu.attention(x[:, :-1].contiguous(), part, rotation, good, [state]),
        lambda: cpu.attention(x, part, layer.rotation(3), good, [state]),
        lambda: cpu.attention(x, part, rotation, [Span(0, 5, 0)], [state]),
        lambda: cpu.attention(x, part, rotation, [Span(0, 4, -1)], [state]),
        lambda: cpu.attention(x, part, rotation, good, [state, state]),
        lambda: cpu.attention(x, part, rotation, [Span(0, 4, TOTAL)], [state]),
        lambda: cpu.attention(x.double(), part, rotation, good, [state]),
    )
    for call in calls:
        with pytest.raises(ValueError, match="attention"):
            call()
    other = State(layer)
    other.window = Ring(9, layer.s.dim + 1, torch.float16)
    with pytest.raises(ValueError, match="a window of rows"):
        cpu.attention(x, part, rotation, good, [other])
