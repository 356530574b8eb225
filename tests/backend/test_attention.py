"""Attention and selection: right, and no token's result depends on chunking, batch-mates, hidden rows or threads."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from penstock.kernels import cpu, reference
from tests.kernels.helpers import assert_close, assert_same_bits, random, threads

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
by_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)


class Scene:
    """A whole sequence: its raw rows, its compressed rows (one for every `ratio` tokens) and its picks."""

    def __init__(
        self, total: int, heads: int, dim: int, window: int, ratio: int, dtype: torch.dtype, seed: int = 0
    ):
        self.total, self.window, self.dtype = total, window, dtype
        self.q = random(total, heads, dim, seed=seed, spread=2)
        self.kv = random(total, dim, seed=seed + 1).to(dtype)
        self.sinks = random(heads, seed=seed + 2)
        self.gates = random(total, heads, seed=seed + 3)
        self.visible = (torch.arange(total) + 1) // ratio
        self.rows = random(total // ratio + 5, dim, seed=seed + 4).to(dtype)  # more than anyone sees yet

    def attend(self, a: int, b: int, mode: str) -> Tensor:
        """Tokens [a, b) as the model would feed them: only the window rows they need, and rows finished by then."""
        window = self.kv[max(0, a - self.window + 1) : b]
        visible = self.visible[a:b]
        rows = self.rows[: int(visible.max())]
        picks = self.select(a, b, 4) if mode == "picks" else None
        if mode == "window":
            return cpu.attend(self.q[a:b], window, self.window, self.sinks, None, None, None)
        return cpu.attend(self.q[a:b], window, self.window, self.sinks, rows, visible, picks)

    def select(self, a: int, b: int, count: int) -> Tensor:
        rows = self.rows[: int(self.visible[a:b].max())]
        return cpu.select(self.q[a:b], self.gates[a:b], rows, self.visible[a:b], count)


MODES = ["window", "all", "picks"]


@by_dtype
@pytest.mark.parametrize("picked", [False, True])
@pytest.mark.parametrize(("total", "heads", "dim"), [(1, 1, 1), (9, 3, 17), (40, 8, 64), (3, 65, 24)])
def test_attend_like_the_reference(
    dtype: torch.dtype, picked: bool, total: int, heads: int, dim: int
) -> None:
    q, sinks = random(total, heads, dim, spread=2), random(heads, seed=1)
    window, rows = random(total + 6, dim, seed=2).to(dtype), random(50, dim, seed=3).to(dtype)
    visible = torch.randint(0, 51, (total,), generator=torch.Generator().manual_seed(4))
    picks = None
    if picked:
        picks = random(total, 50, seed=5).argsort(dim=-1)[:, :13]
        picks[random(total, 13, seed=6) > 0.5] = -1
    for size in (1, 5, 7, 100):
        found = cpu.attend(q, window, size, sinks, rows, visible, picks)
        assert_close(found, reference.attend(q, window, size, sinks, rows, visible, picks), 5e-6)
    found = cpu.attend(q, window, 5, sinks, None, None, None)
    assert_close(found, reference.attend(q, window, 5, sinks, None, None, None), 5e-6)


@settings(deadline=None, max_examples=40)
@given(
    total=st.integers(1, 50),
    cuts=st.sets(st.integers(1, 49), max_size=6),
    heads=st.integers(1, 11),
    dim=st.integers(1, 40),
    window=st.integers(1, 70),
    ratio=st.integers(1, 5),
    dtype=st.sampled_from(DTYPES),
    mode=st.sampled_from(MODES),
)
def test_chunking_never_matters(
    total: int, cuts: set[int], heads: int, dim: int, window: int, ratio: int, dtype: torch.dtype, mode: str
) -> None:
    scene = Scene(total, heads, dim, window, ratio, dtype)
    one_by_one = torch.cat([scene.attend(t, t + 1, mode) for t in range(total)])
    edges = [0, *sorted(cut for cut in cuts if cut < total), total]
    chunked = torch.cat([scene.attend(a, b, mode) for a, b in itertools.pairwise(edges)])
    assert_same_bits(chunked, one_by_one)
    assert_same_bits(scene.attend(0, total, mode), one_by_one)


@pytest.mark.parametrize("mode", MODES)
def test_threads_never_matter(mode: str) -> None:
    scene = Scene(60, 32, 192, 48, 2, torch.float16)
    for a, b in ((0, 60), (59, 60), (57, 60)):  # many tokens share out tokens, few tokens share out heads
        with threads(1):
            alone = scene.attend(a, b, mode)
        for count in (2, 5):
            with threads(count):
                assert_same_bits(scene.attend(a, b, mode), alone)


def test_hidden_rows_are_never_read() -> None:
    scene = Scene(20, 4, 24, 6, 2, torch.float16)
    a, b = 12, 20
    expected = scene.attend(a, b, "all")
    first = torch.full((3, 24), torch.nan, dtype=torch.float16)
    window = torch.cat((first, scene.kv[a - 5 : b]))  # three rows before anyone's window
    rows = torch.full((1000, 24), torch.nan, dtype=torch.float16)
    rows[: int(scene.visible[a:b].max())] = scene.rows[: int(scene.visible[a:b].max())]
    found = cpu.attend(scene.q[a:b], window, 6, scene.sinks, rows, scene.visible[a:b], None)
    assert_same_bits(found, expected)


def test_only_the_own_row_is_visible() -> None:
    scene = Scene(5, 3, 16, 1, 2, torch.float32)
    found = cpu.attend(
        scene.q, scene.kv, 1, torch.full((3,), -torch.inf), scene.rows, torch.zeros(5).long(), None
    )
    assert_close(found, scene.kv.unsqueeze(1).expand(5, 3, 16), 3e-7)


def test_nothing_picked_is_the_window_alone() -> None:
    scene = Scene(9, 3, 16, 4, 2, torch.float32)
    picks = torch.full((9, 6), -1)
    found = cpu.attend(scene.q, scene.kv, 4, scene.sinks, scene.rows, scene.visible, picks)
    assert_same_bits(found, scene.attend(0, 9, "window"))
    no_rows = scene.rows[:0]
    found = cpu.attend(scene.q, scene.kv, 4, scene.sinks, no_rows, torch.zeros(9).long(), None)
    assert_same_bits(found, scene.attend(0, 9, "window"))


def test_picking_everything_is_seeing_everything() -> None:
    scene = Scene(40, 5, 20, 7, 1, torch.bfloat16)
    picks = torch.where(torch.arange(40) < scene.visible.unsqueeze(1), torch.arange(40), -1)
    found = cpu.attend(scene.q, scene.kv, 7, scene.sinks, scene.rows, scene.visible, picks)
    assert_same_bits(found, scene.attend(0, 40, "all"))


@by_dtype
def test_cache_views_are_read_in_place(dtype: torch.dtype) -> None:
    """A slice of a wider and longer buffer: rows far apart, channels together."""
    scene = Scene(12, 2, 24, 5, 1, dtype)
    buffer = torch.full((64, 40), torch.nan, dtype=dtype)
    buffer[8 : 8 + 12, 5:29] = scene.rows[:12]
    found = cpu.attend(scene.q, scene.kv, 5, scene.sinks, buffer[8:20, 5:29], scene.visible, None)
    assert_same_bits(found, scene.attend(0, 12, "all"))
    transposed = scene.kv.T.contiguous().T
    found = cpu.attend(scene.q, transposed, 5, scene.sinks, scene.rows, scene.visible, None)
    assert_same_bits(found, scene.attend(0, 12, "all"))


def test_every_half_is_converted_exactly() -> None:
    """With one visible row and no sink the result is that row: all 65,536 bit patterns of both 16-bit types."""
    patterns = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16)
    for dtype in (torch.float16, torch.bfloat16):
        rows = patterns.view(dtype).view(256, 256)
        finite = rows.float().isfinite()
        safe = torch.where(finite, rows, torch.zeros((), dtype=dtype))
        q = torch.zeros(256, 1, 256)
        found = cpu.attend(q, safe, 1, torch.full((1,), -torch.inf), None, None, None)[:, 0]
        assert torch.equal(found, safe.float())
    odd = torch.tensor([[torch.inf, -torch.inf, torch.nan, 1.0]], dtype=torch.float16)
    found = cpu.pool(odd.float().unsqueeze(0), torch.zeros(1, 1, 4))
    assert found[0, :2].tolist() == [torch.inf, -torch.inf]


def test_large_scores_do_not_overflow() -> None:
    scene = Scene(30, 3, 16, 10, 2, torch.float32)
    q = scene.q * 1e4
    found = cpu.attend(q, scene.kv, 10, scene.sinks, scene.rows, scene.visible, None)
    assert_close(found, reference.attend(q, scene.kv, 10, scene.sinks, scene.rows, scene.visible, None), 1e-3)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_one_broken_query_leaves_the_others_alone(value: float) -> None:
    scene = Scene(9, 4, 16, 4, 1, torch.float16)
    expected, chosen = scene.attend(0, 9, "all"), scene.select(0, 9, 3)
    scene.q[4, 2] = value
    found, picks = scene.attend(0, 9, "all"), scene.select(0, 9, 3)
    keep = torch.arange(9) != 4
    assert_same_bits(found[keep], expected[keep])
    assert_same_bits(found[4, :2], expected[4, :2])
    assert torch.equal(picks[keep], chosen[keep])


@by_dtype
@pytest.mark.parametrize("count", [1, 2, 7, 63, 64, 100])
def test_select_like_the_reference(dtype: torch.dtype, count: int) -> None:
    scene = Scene(64, 7, 33, 4, 1, dtype)
    for available in (1, 64):
        rows, visible = scene.rows[:available], scene.visible.clamp(max=available)
        found = cpu.select(scene.q, scene.gates, rows, visible, count)
        expected = reference.select(scene.q, scene.gates, rows, visible, count)
        assert found.dtype == torch.int64
        assert torch.equal(found, expected)


@settings(deadline=None, max_examples=40)
@given(
    total=st.integers(1, 60),
    cuts=st.sets(st.integers(1, 59), max_size=6),
    count=st.integers(1, 30),
    ratio=st.integers(1, 4),
    dtype=st.sampled_from(DTYPES),
)
def test_chunking_never_changes_picks(
    total: int, cuts: set[int], count: int, ratio: int, dtype: torch.dtype
) -> None:
    scene = Scene(total, 5, 19, 4, ratio, dtype)
    scene.rows = scene.rows.round()  # coarse, so that scores tie
    scene.q, scene.gates = scene.q.round(), scene.gates.round()
    whole = scene.select(0, total, count)
    edges = [0, *sorted(cut for cut in cuts if cut < total), total]
    for a, b in itertools.pairwise(edges):
        part = scene.select(a, b, count)
        assert torch.equal(part, whole[a:b, : part.shape[1]])
        assert (whole[a:b, part.shape[1] :] == -1).all()


def test_ties_go_to_the_lower_row_across_blocks() -> None:
    q, gates = torch.ones(1, 2, 8), torch.ones(1, 2)
    rows = torch.zeros(20_000, 8)
    rows[[19_999, 7, 12_000]] = 1
    for count in (1, 3):
        with threads(count):
            found = cpu.select(q, gates, rows, torch.tensor([20_000]), 10)
        assert found.tolist() == [[0, 1, 2, 3, 4, 5, 6, 7, 12_000, 19_999]]
    negative = cpu.select(q, -gates, rows, torch.tensor([20_000]), 10)  # −0 and 0 are the same score
    assert negative.tolist() == [[0, 1, 2, 3, 4, 5, 6, 8, 9, 10]]


def test_select_from_more_rows_than_fit_the_buffer() -> None:
    q, gates, rows = random(2, 4, 16), random(2, 4, seed=1).abs(), random(30_000, 16, seed=2).half()
    visible = torch.tensor([30_000, 11_111])
    alone = cpu.select(q, gates, rows, visible, 512)
    assert torch.equal(alone, reference.select(q, gates, rows, visible, 512))
    for count in (1, 2, 5):  # two threads share out tokens, five divide the rows of each
        with threads(count):
            assert torch.equal(cpu.select(q, gates, rows, visible, 512), alone)
            one = cpu.select(q[1:], gates[1:], rows[:11_111], visible[1:], 512)
            assert torch.equal(one, alone[1:])


def test_scores_of_nan_lose() -> None:
    rows = torch.ones(6, 4)
    rows[2] = torch.nan
    q = torch.ones(1, 1, 4)
    assert cpu.select(q, torch.full((1, 1), torch.inf), rows * 0, torch.tensor([6]), 3).tolist() == [
        [0, 1, 2]
    ]
    assert cpu.select(q, torch.ones(1, 1), rows, torch.tensor([6]), 5).tolist() == [[0, 1, 3, 4, 5]]


def test_wrong_shapes_are_refused() -> None:
    scene = Scene(4, 2, 8, 3, 1, torch.float32)
    with pytest.raises(ValueError, match="window"):
        cpu.attend(scene.q, scene.kv[:, :7], 3, scene.sinks, None, None, None)
    with pytest.raises(ValueError, match="window"):
        cpu.attend(scene.q, scene.kv[:3], 3, scene.sinks, None, None, None)
    with pytest.raises(ValueError, match="picks"):
        cpu.attend(scene.q, scene.kv, 3, scene.sinks, scene.rows, scene.visible, torch.full((4, 2), 99))
    with pytest.raises(ValueError, match="visible"):
        cpu.select(scene.q, scene.gates, scene.rows, scene.visible[:2], 3)
