"""Ops that keep no state: right, and each row by itself to the bit, whatever the threads."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from penstock.backend import deepseek_v4 as v4
from penstock.backend.state import Step
from penstock.weights import types
from penstock.weights.types import WeightType
from tests.backend.helpers import (
    INTEGER_TYPES,
    WEIGHT_TYPES,
    Device,
    Weights,
    array,
    assert_all_same,
    assert_close,
    assert_rows_stand_alone,
    assert_same_bits,
    random,
)
from tests.backend.layers import BLOCKS, LARGE, ODD, USUAL, Sizes, head, hyper, join, router
from tests.spec import head as head_spec
from tests.spec import hyper as hyper_spec
from tests.spec.linear import embedding
from tests.spec.router import route

Results = tuple[Tensor, ...]


class Case(ABC):
    """One op with its weights.  `run` gives its results for some of the rows of made-up inputs, `expected` what they
    should be for all of them."""

    def __init__(self, weights: Weights, s: Sizes):
        self.weights, self.s = weights, s
        self.prepare()

    def prepare(self) -> None:  # noqa: B027 - most have nothing to prepare
        ...

    def fill(self, rows: int, seed: int = 0) -> None:
        s = self.s
        self.streams = random(rows, s.streams, s.hidden, seed=seed, spread=2)
        self.x = random(rows, s.hidden, seed=seed + 1)
        self.tokens = torch.arange(rows) % 50

    @abstractmethod
    def run(self, device: Device, part: slice) -> Results: ...

    @abstractmethod
    def expected(self) -> Results: ...


class Hyper(Case):
    def prepare(self) -> None:
        self.spec, self.next = hyper(self.weights, self.s), hyper(self.weights, self.s)

    def run(self, device: Device, part: slice) -> Results:
        """Into one sublayer, on into a second, and out."""
        first, second = device.ops.hyper(self.spec), device.ops.hyper(self.next)
        streams, y = array(self.streams[part].clone()), array(self.x[part])
        x, mix = first.enter(streams)
        entered = device.out(x, mix)
        assert_same_bits(device.out(streams)[0], self.streams[part])
        x, mix = second.between(y, streams, array(entered[1]))
        between = device.out(x, mix, streams)
        second.leave(y, streams, mix)
        return (*entered, *between, *device.out(streams))

    def expected(self) -> Results:
        streams, y = self.streams.double(), self.x.double()
        x, mix = hyper_spec.enter(streams, self.spec)
        between = hyper_spec.leave(y, streams, mix)
        x2, mix2 = hyper_spec.enter(between, self.next)
        return x, mix, x2, mix2, between, hyper_spec.leave(y, between, mix2)


class Router(Case):
    def prepare(self) -> None:
        scored = router(self.weights, self.s)
        self.specs = [
            scored,
            router(self.weights, self.s, hashed=True),
            replace(scored, bias=None, normalize=False, scale=1.0),
        ]

    def run(self, device: Device, part: slice) -> Results:
        slot = device.pool.allocate()
        batch = device.ops.begin(Step.of([(slot, 0, self.tokens[part].tolist(), 0)]), range(0))
        found: list[Tensor] = []
        for spec in self.specs:
            op = device.ops.router(spec)
            results = device.out(*op.run(array(self.x[part]), batch))
            guessed = op.guess(array(self.x[part]), batch)
            assert torch.equal(torch.from_numpy(guessed), results[0])
            found += results
        return tuple(found)

    def expected(self) -> Results:
        return tuple(result for spec in self.specs for result in route(self.x.double(), self.tokens, spec))


class Head(Case):
    def prepare(self) -> None:
        self.spec = head(self.weights, self.s)
        self.output = [self.weights.make(size, self.s.hidden) for size in (20, 7, 23)]

    def run(self, device: Device, part: slice) -> Results:
        """All rows, and the last of them alone."""
        op, streams = device.ops.head(self.spec), array(self.streams[part])
        rows = np.arange(len(self.streams[part]))
        whole, one = op.run(streams, rows, self.output), op.run(streams, rows[-1:], self.output)
        assert np.array_equal(one, whole[-1:])
        return (torch.from_numpy(whole),)

    def expected(self) -> Results:
        return (head_spec.head(self.streams.double(), self.spec, self.output),)


class Join(Case):
    def prepare(self) -> None:
        self.specs = [join(self.weights, self.s, fused) for fused in (False, True)]

    def run(self, device: Device, part: slice) -> Results:
        streams, x = array(self.streams[part]), array(self.x[part])
        return tuple(device.out(device.ops.join(spec).run(streams, x))[0] for spec in self.specs)

    def expected(self) -> Results:
        return tuple(head_spec.join(self.streams.double(), self.x.double(), spec) for spec in self.specs)


class Embedding(Case):
    def prepare(self) -> None:
        self.weight = self.weights.make(50, self.s.hidden)

    def run(self, device: Device, part: slice) -> Results:
        """And the streams that begin with it."""
        slot = device.pool.allocate()
        batch = device.ops.begin(Step.of([(slot, 0, self.tokens[part].tolist(), 0)]), range(0))
        x = device.ops.embedding(self.weight).run(batch)
        return device.out(x, device.ops.streams(x, self.s.streams))

    def expected(self) -> Results:
        x = embedding(self.tokens, self.weight)
        return x, x[:, None].expand(-1, self.s.streams, -1)


CASES: dict[str, Callable[[Weights, Sizes], Case]] = {
    "hyper": Hyper,
    "router": Router,
    "head": Head,
    "join": Join,
    "embedding": Embedding,
}
by_op = pytest.mark.parametrize("make", CASES.values(), ids=CASES)


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory) -> dict[Callable[[Weights, Sizes], Case], Case]:
    """One case of each op."""
    weights = Weights(tmp_path_factory.mktemp("rows"))
    return {make: make(weights, USUAL) for make in CASES.values()}


def assert_specified(case: Case, threads: int, relative: float) -> None:
    for found, expected in zip(case.run(Device(threads), slice(None)), case.expected(), strict=True):
        assert_close(found, expected, relative)


@by_op
@pytest.mark.parametrize("sizes", [USUAL, ODD, LARGE], ids=["usual", "odd", "large"])
def test_like_the_specification(tmp_path: Path, make: Callable[[Weights, Sizes], Case], sizes: Sizes) -> None:
    case = make(Weights(tmp_path), sizes)
    for rows in (1, 5, 33):
        case.fill(rows)
        assert_specified(case, 1, 2e-5)


@by_op
@pytest.mark.parametrize("kind", WEIGHT_TYPES, ids=lambda kind: kind.name)
def test_every_weight_type(tmp_path: Path, make: Callable[[Weights, Sizes], Case], kind: WeightType) -> None:
    """Integer formats round their inputs to 16 bits: 2⁻¹⁶ of the largest of 256.  Hyper-connections show the most of
    it (1e-3 here), because these weights are large and make their softmax steep."""
    case = make(Weights(tmp_path, kind), BLOCKS)
    case.fill(9)
    assert_specified(case, 3, 5e-3 if kind in INTEGER_TYPES else 2e-5)
    assert_rows_stand_alone(9, lambda part: case.run(Device(), part), [4])


@by_op
@settings(deadline=None, max_examples=15)
@given(rows=st.integers(1, 40), splits=st.lists(st.integers(1, 39), max_size=3), seed=st.integers(0, 99))
def test_every_row_stands_alone(
    usual: dict[Callable[[Weights, Sizes], Case], Case],
    make: Callable[[Weights, Sizes], Case],
    rows: int,
    splits: list[int],
    seed: int,
) -> None:
    case, device = usual[make], Device()
    case.fill(rows, seed)
    assert_rows_stand_alone(rows, lambda part: case.run(device, part), splits)


@by_op
@pytest.mark.parametrize("rows", [1, 2, 70])
def test_threads_leave_no_trace(tmp_path: Path, make: Callable[[Weights, Sizes], Case], rows: int) -> None:
    case = make(Weights(tmp_path, types.Q8_0), LARGE)
    case.fill(rows)
    alone = case.run(Device(1), slice(None))
    for threads in (2, 3, 5):
        assert_all_same(case.run(Device(threads), slice(None)), alone)


@by_op
@pytest.mark.parametrize("value", [0.0, 1e-30, 1e15, torch.nan, torch.inf])
def test_one_strange_row_stays_in_its_row(
    usual: dict[Callable[[Weights, Sizes], Case], Case], make: Callable[[Weights, Sizes], Case], value: float
) -> None:
    case = usual[make]
    case.fill(5)
    good = case.run(Device(), slice(None))
    case.streams[2] = case.x[2] = value
    keep = torch.arange(5) != 2
    for mine, before in zip(case.run(Device(), slice(None)), good, strict=True):
        assert_same_bits(mine[keep], before[keep])


@pytest.mark.parametrize("value", [0.0, 1e-30, 1e15])
def test_streams_of_any_size(usual: dict[Callable[[Weights, Sizes], Case], Case], value: float) -> None:
    case = usual[Hyper]
    case.fill(3)
    case.streams[1] = value
    found = case.run(Device(), slice(None))
    for mine, expected in zip(found[:2], case.expected()[:2], strict=True):
        assert_close(mine, expected, 2e-5)


# ── values worked out by hand ─────────────────────────────────────────────────────────────────────────────────


def test_hyper_mix_golden(tmp_path: Path) -> None:
    """The projection gives 0.1 · (7k mod 24) − 1.1 for streams that are one in the first channel of the first."""
    mixes = torch.tensor([0.1 * ((7 * k) % 24) - 1.1 for k in range(24)])
    fn = torch.zeros(24, 4 * 2)
    fn[:, 0] = mixes / 8**0.5  # what the norm makes of a single one among eight
    spec = v4.HyperSpec(
        fn=Weights(tmp_path).of(fn),
        base=np.array([0.05 * (k % 5) - 0.1 for k in range(24)], np.float32),
        scale=np.array([0.5, 1.0, 2.0], np.float32),
        norm=np.ones(2, np.float32),
        streams=4,
        iterations=20,
        eps=1e-6,
        rms_eps=1e-12,
    )
    streams = torch.zeros(1, 4, 2)
    streams[0, 0, 0] = 1
    device = Device()
    _, mix = device.ops.hyper(spec).enter(array(streams))
    for found in (device.out(mix)[0][0], hyper_spec.enter(streams.double(), spec)[1][0]):
        assert found[:4].tolist() == pytest.approx([0.34299054, 0.43782450, 0.53743085, 0.63413659], abs=3e-7)
        assert found[4:8].tolist() == pytest.approx(
            [0.70868739, 0.95004163, 1.31402093, 0.53788284], abs=3e-7
        )
        assert found[8:].tolist() == pytest.approx(
            [
                *(0.04798600, 0.08519729, 0.82668074, 0.04013837),
                *(0.26357453, 0.46797144, 0.04798544, 0.22046644),
                *(0.24804271, 0.44039496, 0.04515781, 0.26640234),
                *(0.44039576, 0.00643531, 0.08017502, 0.47299184),
            ],
            abs=5e-7,
        )


def test_leaving_goes_from_source_to_destination(usual: dict[Callable[[Weights, Sizes], Case], Case]) -> None:
    """Stream 1 receives from stream 0, and not the other way round."""
    mix = torch.tensor([[0.0, 0.0, 2.0, 3.0, 0.0, 1.0, 0.0, 0.0]])  # pre, post, comb
    streams, y = torch.tensor([[[5.0, 6.0], [7.0, 8.0]]]), torch.ones(1, 2)
    device, buffer = Device(), array(streams.clone())
    device.ops.hyper(usual[Hyper].spec).leave(array(y), buffer, array(mix))  # type: ignore[attr-defined]
    for found in (device.out(buffer)[0], hyper_spec.leave(y, streams, mix)):
        assert found.tolist() == [[[2.0, 2.0], [8.0, 9.0]]]


def routed(folder: Path, logits: Tensor, **changes: object) -> tuple[Tensor, Tensor]:
    """Ids and weights for rows of logits [rows, experts]: the product only passes them on."""
    rows, experts = logits.shape
    gate = Weights(folder).of(torch.eye(experts))
    spec = replace(v4.RouterSpec(gate, None, None, count=1, normalize=False, scale=1.0), **changes)  # type: ignore[arg-type]
    device = Device()
    batch = device.ops.begin(Step.of([(device.pool.allocate(), 0, [0] * rows, 0)]), range(0))
    ids, weights = device.out(*device.ops.router(spec).run(array(logits), batch))
    expected = route(logits.double(), torch.zeros(rows, dtype=torch.long), spec)
    assert torch.equal(ids, expected[0])
    assert_close(weights.T, expected[1].T)
    return ids, weights


def test_scores_and_selection_bias(tmp_path: Path) -> None:
    logits = torch.tensor([[-5.0, -1.0, 0.0, 1.0, 5.0]])
    scores = [0.081947, 0.559698, 0.832555, 1.145976, 2.237569]
    ids, weights = routed(tmp_path, logits, count=5)
    assert ids.tolist() == [[4, 3, 2, 1, 0]]
    assert weights[0].tolist() == pytest.approx(scores[::-1], abs=1e-6)
    # A bias lifts expert 0 into the choice, but its weight stays the unbiased score.
    bias = np.array([10.0, 0, 0, 0, 0], np.float32)
    ids, weights = routed(tmp_path, logits, bias=bias, count=2, normalize=True, scale=1.5)
    assert ids.tolist() == [[0, 4]]
    total = scores[0] + scores[4]
    assert weights[0].tolist() == pytest.approx([1.5 * scores[0] / total, 1.5 * scores[4] / total], abs=1e-6)


def test_ties_go_to_the_lower_expert(tmp_path: Path) -> None:
    logits = torch.zeros(2, 40)
    logits[1, 17] = 1
    assert routed(tmp_path, logits, count=4, normalize=True)[0].tolist() == [[0, 1, 2, 3], [17, 0, 1, 2]]


def test_scores_at_the_ends(tmp_path: Path) -> None:
    ends = [0.0, -0.0, 1e-42, -1e-45, 1e-20, 19.99, 20.01, 88.8, 104.0, 1e4, 3e38, -88.8, -104.0, -3e38]
    routed(tmp_path, torch.tensor([ends]), count=8)
    gate = torch.diag(torch.tensor([1.0, torch.nan, torch.inf, -torch.inf, 2.0]))
    spec = v4.RouterSpec(Weights(tmp_path).of(gate), None, None, count=3, normalize=True, scale=1.0)
    device = Device()
    batch = device.ops.begin(Step.of([(device.pool.allocate(), 0, [0], 0)]), range(0))
    ids, _ = device.ops.router(spec).run(array(torch.ones(1, 5)), batch)
    assert device.out(ids)[0].tolist() == [[2, 4, 0]]  # NaN never wins


# ── what does not fit ─────────────────────────────────────────────────────────────────────────────────────────


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    weights, ops = Weights(tmp_path), Device().ops
    mixing, choosing, ending = hyper(weights, USUAL), router(weights, USUAL), head(weights, USUAL)
    table = np.zeros((50, 4), np.int64)
    calls: list[Callable[[], object]] = [
        lambda: ops.hyper(replace(mixing, streams=3)),
        lambda: ops.hyper(replace(mixing, base=mixing.base[:-1])),
        lambda: ops.hyper(replace(mixing, scale=mixing.scale[:-1])),
        lambda: ops.hyper(hyper(weights, replace(USUAL, streams=17))),
        lambda: ops.router(replace(choosing, count=12)),
        lambda: ops.router(replace(choosing, count=0)),
        lambda: ops.router(replace(choosing, bias=np.zeros(3, np.float32))),
        lambda: ops.router(replace(choosing, table=table + 11)),
        lambda: ops.router(replace(choosing, table=table - 1)),
        lambda: ops.router(replace(choosing, table=table[:, :3])),
        lambda: ops.head(replace(ending, streams=3)),
        lambda: ops.head(replace(ending, base=ending.base[:-1])),
    ]
    for call in calls:
        with pytest.raises(ValueError, match="w: "):
            call()
