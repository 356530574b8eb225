"""The attention sublayer: right, and no token's result depends on chunks, batch-mates, hidden rows or threads."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from penstock.backend.deepseek_v4 import AttentionSpec
from penstock.backend.state import Step
from penstock.weights import types
from penstock.weights.types import WeightType
from tests.backend.helpers import (
    INTEGER_TYPES,
    KV_DTYPES,
    WEIGHT_TYPES,
    Weights,
    array,
    assert_all_same,
    assert_close,
    assert_same_bits,
)
from tests.backend.layers import (
    BLOCKS,
    KINDS,
    LARGE,
    ODD,
    USUAL,
    Block,
    Fed,
    Sizes,
    attention,
    inputs,
    pieces,
)
from tests.spec.attention import attention as specified

# How far results may be from the specification: one step of the cache's type where a value falls between two.
STEP = {"f32": 5e-6, "f16": 2e-3, "bf16": 2e-2}
by_kind = pytest.mark.parametrize("kind", KINDS)
by_dtype = pytest.mark.parametrize("kv_dtype", KV_DTYPES)


@pytest.fixture(scope="module")
def specs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, AttentionSpec]:
    """One of each kind."""
    folder = tmp_path_factory.mktemp("attention")
    weights = Weights(folder)
    return {kind: attention(weights, USUAL, kind) for kind in KINDS}


def assert_specified(fed: Fed, found: Tensor, spec: AttentionSpec, step: float) -> None:
    """All of a sequence's results, and its state."""
    dtype = KV_DTYPES[fed.block.layout.kv_dtype]
    expected = specified(fed.x[: fed.position].double(), spec, dtype)
    assert_close(found, expected.out, step)
    state = fed.state()
    rows = {"window": expected.window, "compressor.rows": expected.rows, "indexer.rows": expected.index_rows}
    for name, every in rows.items():
        if every is not None:
            assert_close(state[name], every.float()[len(every) - len(state[name]) :], max(step, STEP["f32"]))


# ── as specified ──────────────────────────────────────────────────────────────────────────────────────────────


@by_dtype
@by_kind
@pytest.mark.parametrize("sizes", [USUAL, ODD, LARGE], ids=["usual", "odd", "large"])
def test_like_the_specification(tmp_path: Path, sizes: Sizes, kind: str, kv_dtype: str) -> None:
    spec = attention(Weights(tmp_path), sizes, kind, overlap=False if sizes is ODD else None)
    fed = Block(spec, kv_dtype).sequence(inputs(sizes, 45))
    assert_specified(fed, fed.feed(1, 1, 7, 1, 21, 14), spec, STEP[kv_dtype])


@by_kind
@pytest.mark.parametrize("weights", WEIGHT_TYPES, ids=lambda kind: kind.name)
def test_every_weight_type(tmp_path: Path, weights: WeightType, kind: str) -> None:
    """Integer formats round their inputs to 16 bits: 2⁻¹⁶ of the largest of 256."""
    sizes = replace(BLOCKS, topk=100)  # nothing is chosen, so no choice can be a hair's breadth away
    spec, x = attention(Weights(tmp_path, weights), sizes, kind), inputs(sizes, 21)
    fed = Block(spec, "f32").sequence(x)
    found = fed.feed(5, 1, 15)
    assert_specified(fed, found, spec, 5e-3 if weights in INTEGER_TYPES else 2e-5)
    assert_same_bits(Block(spec, "f32", threads=3).sequence(x).feed(*[1] * 21), found)


@pytest.mark.parametrize("overlap", [False, True])
def test_the_choice_of_many_rows(tmp_path: Path, overlap: bool) -> None:
    """Long enough that most rows are not chosen."""
    sizes = replace(USUAL, topk=9, window=3)
    spec = attention(Weights(tmp_path), sizes, "sparse", overlap)
    fed = Block(spec, "f32").sequence(inputs(sizes, 300))
    assert_specified(fed, fed.feed(130, 1, 169), spec, STEP["f32"])


# ── the same bits ─────────────────────────────────────────────────────────────────────────────────────────────


@by_kind
@settings(deadline=None, max_examples=25)
@given(
    total=st.integers(1, 60),
    cuts=st.lists(st.integers(1, 59), max_size=8),
    kv_dtype=st.sampled_from(list(KV_DTYPES)),
    max_rewind=st.integers(0, 5),
    seed=st.integers(0, 99),
)
def test_chunks_leave_no_trace(
    specs: dict[str, AttentionSpec],
    kind: str,
    total: int,
    cuts: list[int],
    kv_dtype: str,
    max_rewind: int,
    seed: int,
) -> None:
    block, x = Block(specs[kind], kv_dtype, max_rewind=max_rewind), inputs(USUAL, total, seed)
    one_by_one, chunked = block.sequence(x), block.sequence(x)
    expected = one_by_one.feed(*[1] * total)
    assert_same_bits(chunked.feed(*pieces(total, cuts)), expected)
    assert_all_same([*chunked.state().values()], [*one_by_one.state().values()])


@by_kind
@settings(deadline=None, max_examples=15)
@given(steps=st.lists(st.tuples(st.integers(0, 2), st.integers(1, 7)), min_size=1, max_size=12))
def test_batch_mates_leave_no_trace(
    specs: dict[str, AttentionSpec], kind: str, steps: list[tuple[int, int]]
) -> None:
    """Three sequences together, in any chunks, and each by itself token by token."""
    block = Block(specs[kind])
    together, alone = [[block.sequence(inputs(USUAL, 90, seed)) for seed in range(3)] for _ in range(2)]
    for leader, count in steps:
        work = [(fed, count if number == leader else 1) for number, fed in enumerate(together)]
        for (_, size), twin, found in zip(work, alone, block.run(work), strict=True):
            assert_same_bits(found, twin.feed(*[1] * size))


@by_kind
@pytest.mark.parametrize("chunk", [1, 3, 100])
@pytest.mark.parametrize("weights", [types.Q8_0, types.F16, types.Q4_0], ids=lambda kind: kind.name)
def test_threads_leave_no_trace(tmp_path: Path, kind: str, chunk: int, weights: WeightType) -> None:
    spec, x = attention(Weights(tmp_path, weights), LARGE, kind), inputs(LARGE, 100)
    cuts = pieces(100, range(0, 100, chunk))
    alone = Block(spec).sequence(x)
    expected = alone.feed(*cuts)
    for threads in (2, 3, 5):
        other = Block(spec, threads=threads).sequence(x)
        assert_same_bits(other.feed(*cuts), expected)
        assert_all_same([*other.state().values()], [*alone.state().values()])


@by_kind
def test_more_rows_than_have_queries_at_a_time(specs: dict[str, AttentionSpec], kind: str) -> None:
    """Two sequences, the second across the edge between two blocks of rows, and both longer than their rings."""
    block = Block(specs[kind])
    found, expected = [[block.sequence(inputs(USUAL, 700, seed)) for seed in range(2)] for _ in range(2)]
    results = block.run(list(zip(found, (300, 700), strict=True)))
    for mine, count, other in zip(results, (300, 700), expected, strict=True):
        assert_same_bits(mine, other.feed(count - 130, 1, 129))
    for fed, twin in zip(found, expected, strict=True):
        assert_all_same([*fed.state().values()], [*twin.state().values()])


# ── what a step may touch ─────────────────────────────────────────────────────────────────────────────────────


@by_kind
@pytest.mark.parametrize("count", [1, 2, 9, 30])
def test_a_failed_step_replaces_nothing_that_counts(
    specs: dict[str, AttentionSpec], kind: str, count: int
) -> None:
    """A single row goes straight into the ring, before the step has succeeded."""
    block, x = Block(specs[kind], max_rewind=0), inputs(USUAL, 61)
    fed, clean = block.sequence(x), block.sequence(x)
    fed.feed(*[1] * 30)
    block.run([(fed, count)], keep=False)
    clean.feed(30)
    assert_all_same([*fed.state().values()], [*clean.state().values()])
    assert_same_bits(fed.feed(31), clean.feed(31))


@by_kind
def test_rows_that_nobody_sees_are_never_read(specs: dict[str, AttentionSpec], kind: str) -> None:
    block, x = Block(specs[kind], max_rewind=3), inputs(USUAL, 40)
    fed, clean = block.sequence(x), block.sequence(x)
    fed.feed(30)
    clean.feed(30)
    for number, series in enumerate(block.layout.series):
        rows = block.pool.slots[fed.slot].series[number]
        first, last = series.live(30, 30)
        live = {row % len(rows) for row in range(first, last)}
        rows[[row for row in range(len(rows)) if row not in live]] = np.float32(np.nan).astype(rows.dtype)
    assert np.isnan(block.pool.slots[fed.slot].series[0]).any()
    assert_same_bits(fed.feed(1, 9), clean.feed(1, 9))


@by_kind
def test_one_broken_token_is_seen_by_later_ones_only(specs: dict[str, AttentionSpec], kind: str) -> None:
    block, x = Block(specs[kind]), inputs(USUAL, 30)
    good = block.sequence(x).feed(30)
    broken = x.clone()
    broken[12] = torch.nan
    mate = block.sequence(x)
    found, other = block.run([(block.sequence(broken), 30), (mate, 30)])
    assert_same_bits(found[:12], good[:12])
    assert found[12].isnan().all()
    assert_same_bits(other, good)


def test_the_window_alone(specs: dict[str, AttentionSpec]) -> None:
    """`fill_window` leaves a sliding layer's state as `run` would."""
    block, x = Block(specs["sliding"]), inputs(USUAL, 40)
    for cuts in ([1] * 20, [20], [3, 1, 16]):
        fed, filled = block.sequence(x), block.sequence(x)
        fed.feed(*cuts)
        for count in cuts:
            at = filled.position
            batch = block.device.ops.begin(Step.of([(filled.slot, at, [0] * count, 0)]), range(1))
            block.op.fill_window(array(x[at : at + count]), batch)
            filled.position += count
            block.pool.commit(filled.slot, filled.position)
        assert_all_same([*filled.state().values()], [*fed.state().values()])


# ── what does not fit ─────────────────────────────────────────────────────────────────────────────────────────


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    weights = Weights(tmp_path)
    spec = attention(weights, USUAL)
    assert spec.compressor is not None
    assert spec.indexer is not None
    other = Sizes(hidden=USUAL.hidden + 1)
    bad = [
        replace(spec, kv=weights.make(USUAL.dim, other.hidden)),
        replace(spec, q_norm=spec.q_norm[:-1]),
        replace(spec, kv_norm=spec.kv_norm[:-1]),
        replace(spec, sinks=spec.sinks[:-1]),
        replace(spec, groups=2),
        replace(spec, out_b=weights.make(USUAL.hidden, 23)),
        replace(spec, frequencies=np.ones(USUAL.dim, np.float32)),
        replace(spec, window=0),
        replace(spec, compressor=None),
        replace(spec, compressor=replace(spec.compressor, norm=spec.compressor.norm[:-1])),
        replace(spec, compressor=replace(spec.compressor, ape=spec.compressor.ape[:, :-1])),
        replace(spec, indexer=replace(spec.indexer, topk=0)),
        replace(spec, indexer=replace(spec.indexer, dim=USUAL.index_dim - 1)),
    ]
    for wrong in bad:
        block = Block(spec)
        with pytest.raises(ValueError, match="w: "):
            block.device.ops.attention(wrong, block.op.state)
