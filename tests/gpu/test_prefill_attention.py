"""State, indexer and attention of long steps against float64 (spec §3.5 – §3.10)."""

import numpy as np
import pytest
import torch

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
from penstock.backend.cuda.prefill_products import HALF_SCALE, HalfRows
from tests.gpu import reference as ref
from tests.gpu.test_prefill_hyper import PLACE

EPS = 1e-6
FREQUENCIES = (160000.0 ** (-np.arange(32) / 32)).astype(np.float32)


def rotated(x: ref.Floats, positions: ref.Floats, sign: int = 1) -> ref.Floats:
    """The last 64 channels of x [rows, …, channels], by pairs"""
    angle = sign * positions[:, None] * FREQUENCIES.astype(np.float64)
    angle = angle.reshape(len(x), *[1] * (x.ndim - 2), 32)
    out, a, b = x.copy(), x[..., -64::2], x[..., -63::2]
    out[..., -64::2] = a * np.cos(angle) - b * np.sin(angle)
    out[..., -63::2] = a * np.sin(angle) + b * np.cos(angle)
    return out


def on_card(array: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(array, np.float32)).cuda()


def places(sequences: list[tuple[torch.Tensor, int, int]]) -> LongPlaces:
    """From (memory, first position, rows)"""
    found = [(memory.data_ptr(), memory.data_ptr(), position, rows) for memory, position, rows in sequences]
    return LongPlaces.of(found, on_card(FREQUENCIES))


def view(memory: torch.Tensor, at: RowsAt, width: int, dtype: torch.dtype) -> torch.Tensor:
    """[capacity, width]"""
    size = torch.empty(0, dtype=dtype).element_size()
    return memory[at.at :].view(dtype).as_strided((at.capacity, width), (at.apart // size, 1))


class Memory:
    """A compressor's weights, and the projections of a sequence of `length` tokens."""

    def __init__(self, ratio: int, dim: int, width: int, length: int):
        rng = np.random.default_rng(ratio + dim)
        self.ratio, self.dim, self.width, self.length = ratio, dim, width, length
        self.kv = on_card(rng.standard_normal((length, 512)))
        self.values, self.scores = (on_card(rng.standard_normal((length, width))) for _ in range(2))
        self.ape = on_card(rng.standard_normal((ratio, width)))
        self.norm, self.kv_norm = on_card(rng.random(dim) + 0.5), on_card(rng.random(512) + 0.5)
        self.window = RowsAt(0, 1024, 200)
        self.frontier = RowsAt(200 * 1024, 8 * width, 2 * ratio + 7)
        self.rows = RowsAt(
            self.frontier.at + self.frontier.capacity * 8 * width, 2 * dim + 32, length // ratio + 1
        )
        self.size = self.rows.at + self.rows.capacity * self.rows.apart

    def run(self, steps: list[int]) -> torch.Tensor:
        memory = torch.zeros(self.size, dtype=torch.uint8, device="cuda")
        view(memory, self.frontier, 2 * self.width, torch.float32).fill_(float("nan"))
        at = 0
        for n in steps:
            part = slice(at, at + n)
            where = places([(memory, at, n)])
            compressor = CompressorState(
                self.values[part], self.scores[part], self.ape, self.norm, self.frontier, self.rows
            )
            fresh = torch.full((n, 512), float("nan"), dtype=torch.float16, device="cuda")
            keep_rows(self.kv[part], self.kv_norm, where, fresh, EPS)
            pool_rows(compressor, where, EPS)
            commit_window(fresh, self.window, where)
            commit_frontier(compressor, where)
            at += n
        return memory

    def wanted_rows(self) -> ref.Floats:
        values, scores = self.values.double().cpu().numpy(), self.scores.double().cpu().numpy()
        scores = scores + self.ape.double().cpu().numpy()[np.arange(self.length) % self.ratio]
        out = []
        for w in range(self.length // self.ratio):
            now = slice(w * self.ratio, (w + 1) * self.ratio)
            v, s = values[now, -self.dim :], scores[now, -self.dim :]
            if self.width > self.dim and w:
                before = slice((w - 1) * self.ratio, w * self.ratio)
                v = np.concatenate([values[before, : self.dim], v])
                s = np.concatenate([scores[before, : self.dim], s])
            weight = np.exp(s - s.max(axis=0))
            pooled = (weight * v).sum(axis=0) / weight.sum(axis=0)
            out.append(ref.rms_norm(pooled, self.norm.double().cpu().numpy(), EPS))
        return rotated(np.array(out), np.arange(len(out)) * float(self.ratio))


@pytest.mark.parametrize(
    ("ratio", "dim", "width", "length"), [(4, 512, 1024, 322), (4, 128, 256, 322), (128, 512, 512, 660)]
)
def test_what_tokens_leave_behind(ratio: int, dim: int, width: int, length: int) -> None:
    memory = Memory(ratio, dim, width, length)
    whole = memory.run([length])
    wanted = memory.wanted_rows()
    got = view(whole, memory.rows, dim, torch.float16)[: len(wanted)]
    assert ref.error(got.float().cpu().numpy(), wanted) < 5e-4  # float16
    positions = np.arange(length - 150, length)
    kv = ref.rms_norm(memory.kv.double().cpu().numpy()[positions], memory.kv_norm.double().cpu().numpy(), EPS)
    window = view(whole, memory.window, 512, torch.float16)[torch.from_numpy(positions % 200).cuda()]
    assert ref.error(window.float().cpu().numpy(), rotated(kv, positions.astype(np.float64))) < 5e-4
    # In chunks of any length they leave the same bits.
    for steps in ([1, 2, 3, 100, 7, 9, length - 122], [50] * (length // 50) + [length % 50]):
        parts = memory.run(steps)
        for place, columns, dtype in (
            (memory.rows, dim, torch.float16),
            (memory.frontier, 2 * width, torch.float32),
            (memory.window, 512, torch.float16),
        ):
            a, b = view(whole, place, columns, dtype), view(parts, place, columns, dtype)
            if place is memory.window:  # the last 200 of all
                assert torch.equal(a, b)
            elif place is memory.rows:
                assert torch.equal(a[: len(wanted)], b[: len(wanted)])
            else:
                assert torch.equal(a.nan_to_num(7), b.nan_to_num(7))


def test_the_indexer_picks_the_best_rows() -> None:
    rng = np.random.default_rng(3)
    count, ratio = 512, 4
    keys = [rng.standard_normal((rows, 128)).astype(np.float16) for rows in (5300, 700)]
    keys[0][100:140] = keys[0][60]  # ties
    at = RowsAt(256, 288, 5300)
    memories = [torch.zeros(256 + 288 * 5300, dtype=torch.uint8, device="cuda") for _ in range(2)]
    for memory, own in zip(memories, keys, strict=True):
        view(memory, at, 128, torch.float16)[: len(own)] = torch.from_numpy(own).cuda()
    where = places([(memories[0], 21000, 6), (memories[1], 2040, 19)])
    rows = where.rows
    q, gates = rng.standard_normal((rows, 64, 128)), rng.standard_normal((rows, 64))
    scores = torch.full((rows, 5300), float("nan"), device="cuda")
    picks = torch.full((rows, count), -1, dtype=torch.int32, device="cuda")
    counts = torch.zeros(rows, dtype=torch.int32, device="cuda")
    f = [on_card(a) for a in (q, gates)]
    select_rows(f[0], f[1], at, where, scores, picks, counts, ratio)
    got = scores.cpu().numpy()
    # With memory for a few rows at a time the choice is the same.
    again, few = torch.full_like(picks, -1), torch.empty(9, 5300, device="cuda")
    select_rows(f[0], f[1], at, where, few, again, torch.zeros_like(counts), ratio)
    assert all(torch.equal(again[r, : counts[r]], picks[r, : counts[r]]) for r in range(rows))
    turned = rotated(f[0].double().cpu().numpy(), where.positions.double().cpu().numpy())
    for row in range(rows):
        own = keys[0] if row < 6 else keys[1]
        visible = (int(where.positions[row]) + 1) // ratio
        n = min(visible, count)
        assert counts[row] == n
        if visible <= count:
            assert picks[row, :n].tolist() == list(range(n))
            continue
        hits = np.maximum(turned[row] @ own[:visible].astype(np.float64).T, 0)
        wanted = f[1][row].double().cpu().numpy() @ hits * (128 * 64) ** -0.5
        assert ref.error(got[row, :visible], wanted) < 5e-4
        best = np.lexsort((np.arange(visible), -got[row, :visible]))[:count]
        assert picks[row].tolist() == sorted(best.tolist())


@pytest.mark.parametrize("kind", ["window", "all", "picked"])
@pytest.mark.parametrize("heads", [64, 16, 96])
def test_attention(kind: str, heads: int) -> None:
    rng = np.random.default_rng(4)
    ratio = 128 if kind == "all" else 4
    window, compressed = RowsAt(0, 1024, 200), RowsAt(200 * 1024, 1024 + 16, 1100)
    memories: list[torch.Tensor] = []
    near: list[ref.Floats] = []
    far: list[ref.Floats] = []
    for _ in range(3):
        memory = torch.zeros(
            compressed.at + compressed.apart * compressed.capacity, dtype=torch.uint8, device="cuda"
        )
        for place, into in ((window, near), (compressed, far)):
            some_rows = view(memory, place, 512, torch.float16)
            some_rows.copy_(torch.from_numpy(rng.standard_normal((place.capacity, 512))))
            into.append(some_rows.double().cpu().numpy())
        memories.append(memory)
    sequences = [(memories[0], 0, 150), (memories[1], 3000, 37), (memories[2], 100, 64)]
    where = places(sequences)
    total = where.rows
    q = torch.from_numpy(rng.standard_normal((total, heads, 512))).half().cuda()
    q_scales = on_card(rng.random(total) + 0.1)
    fresh = torch.from_numpy(rng.standard_normal((total, 512))).half().cuda()
    sinks = rng.standard_normal(heads).astype(np.float32)
    positions = where.positions.cpu().numpy()
    counts = np.minimum(512, (positions + 1) // ratio)
    picks = np.zeros((total, 512), np.int64)
    for row in range(total):
        picks[row, : counts[row]] = np.sort(
            rng.choice((positions[row] + 1) // ratio, counts[row], replace=False)
        )
    device_picks, device_counts = (torch.from_numpy(a.astype(np.int32)).cuda() for a in (picks, counts))
    out = HalfRows.empty(total, heads * 512)
    out.halves.fill_(float("nan"))

    def run(part: slice, where: LongPlaces, out: HalfRows) -> None:
        chosen = [t[part].contiguous() if kind == "picked" else None for t in (device_picks, device_counts)]
        attend(
            q[part].contiguous(), q_scales[part].contiguous(), fresh[part].contiguous(), window, where,
            on_card(sinks), 128, EPS, out, ratio, None if kind == "window" else compressed, *chosen,
        )  # fmt: skip

    run(slice(0, total), where, out)
    got = (
        out.halves[0].float().cpu().numpy().reshape(total, -1, 32)[:, :, PLACE].reshape(total, heads, 512)
        * out.scale
    )
    exact_q = q.double().cpu().numpy() * q_scales.double().cpu().numpy()[:, None, None] * HALF_SCALE
    turned = rotated(ref.rms_norm(exact_q, 1.0, EPS), positions.astype(np.float64))
    exact_fresh = fresh.double().cpu().numpy()
    first = 0
    for number, (_, position, rows) in enumerate(sequences):
        for row in range(first, first + rows):
            at = positions[row]
            seen = np.arange(max(0, at - 127), at + 1)
            keys: ref.Floats = np.where(
                (seen >= position)[:, None], exact_fresh[np.clip(first + seen - position, 0, total - 1)],
                near[number][seen % 200],
            )  # fmt: skip
            if kind != "window":
                some = np.arange((at + 1) // ratio) if kind == "all" else picks[row, : counts[row]]
                keys = np.concatenate([keys, far[number][some]])
            scores = turned[row] @ keys.T * 512**-0.5
            top = np.maximum(scores.max(axis=1), sinks)[:, None]
            weight = np.exp(scores - top)
            sum_ = weight.sum(axis=1, keepdims=True) + np.exp(sinks[:, None] - top)
            wanted = rotated((weight / sum_ @ keys)[None], np.array([float(at)]), -1)[0]
            assert ref.error(got[row], wanted) < 1.5e-3, f"row {row}"
        first += rows
    # A row's attention does not depend on its neighbours.
    alone = HalfRows.empty(10, heads * 512)
    part = slice(150, 160)
    run(part, places([(memories[1], 3000, 10)]), alone)
    assert torch.equal(alone.halves[0], out.halves[0, part])
