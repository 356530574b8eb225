"""State, indexer and attention of a decode step against float64 (spec §3.5 – §3.10)."""

import numpy as np
import pytest
import torch

from penstock.backend.cuda.attention import (
    Attention,
    CompressorState,
    Indexer,
    MakeTurns,
    Places,
    Remember,
    RowsAt,
)
from penstock.backend.cuda.inputs import DIGITS, Image
from tests.gpu import reference as ref

EPS = 1e-6
FREQUENCIES = (160000.0 ** (-np.arange(32) / 32)).astype(np.float32)


def rotated(x: ref.Floats, position: int, sign: int = 1) -> ref.Floats:
    """The last 64 of x's channels, by pairs"""
    angle = sign * position * FREQUENCIES.astype(np.float64)
    out, a, b = x.copy(), x[..., -64::2], x[..., -63::2]
    out[..., -64::2] = a * np.cos(angle) - b * np.sin(angle)
    out[..., -63::2] = a * np.sin(angle) + b * np.cos(angle)
    return out


class Slots:
    """Memory of some sequences, each with the same rows in it."""

    def __init__(self, *rows: torch.Tensor):
        """rows: [slots, capacity, width] each"""
        sizes = [r[0].numel() * r.element_size() for r in rows]
        starts = [sum(-(-size // 256) * 256 for size in sizes[:i]) for i in range(len(rows) + 1)]
        self._memory = torch.zeros(len(rows[0]), max(starts[-1], 256), dtype=torch.uint8, device="cuda")
        self.at, self.views = [], []
        for each, start, size in zip(rows, starts, sizes, strict=False):
            part = self._memory[:, start : start + size]
            part.copy_(each.reshape(len(each), -1).view(torch.uint8))
            self.at.append(RowsAt(start, each.shape[2] * each.element_size(), each.shape[1]))
            self.views.append((part, each.dtype, each.shape))

    def read(self, number: int) -> torch.Tensor:
        part, dtype, shape = self.views[number]
        return part.contiguous().view(dtype).view(shape)

    def places(self, positions: list[int], slots: list[int]) -> Places:
        states = self._memory.data_ptr() + self._memory.stride(0) * torch.tensor(slots, dtype=torch.int64)
        frequencies = torch.from_numpy(FREQUENCIES).cuda()
        turns = torch.zeros(len(slots), len(FREQUENCIES), 2, device="cuda")
        at = torch.tensor(positions, dtype=torch.int32, device="cuda")
        where = Places(at, states.cuda(), frequencies, turns)
        MakeTurns(where).launch()
        return where


def halves(array: ref.Floats) -> torch.Tensor:
    return torch.from_numpy(array.astype(np.float16)).cuda()


class Memory:
    """Two sequences' state, and the projections of `length` tokens of the second."""

    def __init__(self, ratio: int, dim: int, width: int, length: int):
        rng = np.random.default_rng(ratio + dim)
        self.ratio, self.dim, self.width, self.length = ratio, dim, width, length
        self.kv = torch.from_numpy(rng.standard_normal((length, 512)).astype(np.float32)).cuda()
        self.values, self.scores = (
            torch.from_numpy(rng.standard_normal((length, width)).astype(np.float32)).cuda() for _ in range(2)
        )
        self.ape = torch.from_numpy(rng.standard_normal((ratio, width)).astype(np.float32)).cuda()
        self.norm, self.kv_norm = (
            torch.from_numpy((rng.random(n) + 0.5).astype(np.float32)).cuda() for n in (dim, 512)
        )

    def run(self, steps: list[int]) -> tuple[torch.Tensor, ...]:
        """Tokens in launches of so many rows → window, frontier, rows"""
        window = torch.zeros(2, 140, 512, dtype=torch.float16, device="cuda")
        frontier = torch.full((2, 2 * self.ratio + 31, 2 * self.width), float("nan"), device="cuda")
        rows = torch.zeros(2, self.length // self.ratio + 1, self.dim, dtype=torch.float16, device="cuda")
        slots, at = Slots(window, frontier, rows), 0
        for n in steps:
            part = slice(at, at + n)
            compressor = CompressorState(
                self.values[part], self.scores[part], self.ape, self.norm, *slots.at[1:]
            )
            where = slots.places(list(range(at, at + n)), [1] * n)
            Remember(self.kv[part], self.kv_norm, slots.at[0], where, [compressor], EPS).launch()
            torch.cuda.synchronize()
            at += n
        return slots.read(0), slots.read(1), slots.read(2)

    def wanted_rows(self) -> ref.Floats:
        values = self.values.double().cpu().numpy()
        scores = self.scores.double().cpu().numpy()
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
            normed = ref.rms_norm(pooled, self.norm.double().cpu().numpy(), EPS)
            out.append(rotated(normed, w * self.ratio))
        return np.array(out)


@pytest.mark.parametrize(
    ("ratio", "dim", "width", "length"), [(4, 512, 1024, 22), (4, 128, 256, 22), (128, 512, 512, 260)]
)
def test_what_a_token_leaves_behind(ratio: int, dim: int, width: int, length: int) -> None:
    memory = Memory(ratio, dim, width, length)
    window, frontier, rows = memory.run([1] * length)
    wanted = memory.wanted_rows()
    assert ref.error(rows[1, : len(wanted)].float().cpu().numpy(), wanted) < 5e-4  # float16
    assert not rows[0].any()
    position = length - 3
    kv = ref.rms_norm(memory.kv[position].double().cpu().numpy(), memory.kv_norm.double().cpu().numpy(), EPS)
    assert ref.error(window[1, position % 140].float().cpu().numpy(), rotated(kv, position)) < 5e-4
    # Neighbours in one launch leave the same bits as one by one.
    steps = [5, 16, 1] + [32] * ((length - 22) // 32)
    steps += [1] * (length - sum(steps))
    for one, many in zip((window, frontier, rows), memory.run(steps), strict=True):
        assert torch.equal(one.nan_to_num(7), many.nan_to_num(7))


def test_the_indexer_picks_the_best_rows() -> None:
    rng = np.random.default_rng(3)
    heads, count, ratio = 64, 512, 4
    positions, slots = [21000, 2047, 11, 9999, 2051, 4095, 4099, 3000], [1, 0, 1, 0, 1, 0, 1, 0]
    n_rows = len(positions)
    q, gates = rng.standard_normal((n_rows, heads, 128)), rng.standard_normal((n_rows, heads))
    keys = rng.standard_normal((2, 5300, 128))
    keys[0, 100:140] = keys[0, 60]  # ties
    keys[0, 200:700] = 0  # more of them than there is room for
    device_keys = halves(keys)
    exact = device_keys.double().cpu().numpy()
    scores = torch.full((n_rows, 5300), float("nan"), device="cuda")
    picks = torch.full((n_rows, count), -1, dtype=torch.int32, device="cuda")
    counts = torch.zeros(n_rows, dtype=torch.int32, device="cuda")
    memory = Slots(device_keys)
    where = memory.places(positions, slots)
    f = [torch.from_numpy(a.astype(np.float32)).cuda() for a in (q, gates)]
    Indexer(f[0], f[1], memory.at[0], where, scores, picks, counts, ratio).launch()
    got = scores.cpu().numpy()
    for row, (position, slot) in enumerate(zip(positions, slots, strict=True)):
        visible = (position + 1) // ratio
        n = min(visible, count)
        assert counts[row] == n
        if visible <= count:
            assert picks[row, :n].tolist() == list(range(n))
            continue
        turned = rotated(f[0][row].double().cpu().numpy(), position)
        hits = np.maximum(turned @ exact[slot, :visible].T, 0)  # [heads, visible]
        wanted = f[1][row].double().cpu().numpy() @ hits * (128 * heads) ** -0.5
        assert ref.error(got[row, :visible], wanted) < 5e-6
        best = np.lexsort((np.arange(visible), -got[row, :visible]))[:count]
        assert picks[row].tolist() == sorted(best.tolist())


@pytest.mark.parametrize("kind", ["window", "all", "picked"])
def test_attention(kind: str) -> None:
    rng = np.random.default_rng(4)
    heads, rows, capacity, ratio = 64, 4, 136, 128 if kind == "all" else 4
    positions, slots = [3, 127, 5000, 70001], [2, 0, 1, 2]
    q = rng.standard_normal((rows, heads, 512)) * 2
    window, compressed = (
        halves(rng.standard_normal((3, capacity, 512))),
        halves(rng.standard_normal((3, 17600, 512))),
    )
    sinks = rng.standard_normal(heads)
    picks = np.stack([np.sort(rng.choice(1000, 512, replace=False)) for _ in range(rows)])
    counts = np.array([min(512, (p + 1) // ratio) for p in positions])
    picks[0, :1], picks[1, :32] = [0], np.arange(32)
    picked = torch.from_numpy(picks.astype(np.int32)).cuda() if kind == "picked" else None
    device_q = torch.from_numpy(q.astype(np.float32)).cuda()
    out = torch.full((rows, heads * 512), float("nan"), device="cuda")
    image = Image(rows, 8 * 512, DIGITS, groups=8)
    memory = Slots(window, compressed)
    where = memory.places(positions, slots)
    Attention(
        device_q, memory.at[0], where, torch.from_numpy(sinks.astype(np.float32)).cuda(), 128, EPS, ratio,
        None if kind == "window" else memory.at[1], picked, out, image,
    ).launch()  # fmt: skip
    got = out.cpu().numpy().reshape(rows, heads, 512)
    near, far = window.double().cpu().numpy(), compressed.double().cpu().numpy()
    exact_q = device_q.double().cpu().numpy()
    for row, (position, slot) in enumerate(zip(positions, slots, strict=True)):
        seen = np.arange(max(0, position - 127), position + 1)
        keys = near[slot, seen % capacity]
        if kind == "all":
            keys = np.concatenate([keys, far[slot, : (position + 1) // ratio]])
        if kind == "picked":
            keys = np.concatenate([keys, far[slot, picks[row, : counts[row]]]])
        turned = rotated(ref.rms_norm(exact_q[row], 1.0, EPS), position)
        scores = turned @ keys.T * 512**-0.5
        top = np.maximum(scores.max(axis=1), sinks.astype(np.float32))[:, None]
        weights = np.exp(scores - top)
        total = weights.sum(axis=1, keepdims=True) + np.exp(sinks.astype(np.float32)[:, None] - top)
        wanted = rotated(weights / total @ keys, position, -1)
        assert ref.error(got[row], wanted) < 5e-6
    # The digits of every group's image are those of the floats.
    raw = image.data[0].cpu().numpy()
    for row in range(rows):
        for group in range(8):
            high, low = (
                raw[group, (2 * row + k) * 4128 :][:4096].view(np.int8).astype(np.float64) for k in (0, 1)
            )
            scales = raw[group, 2 * rows * 4128 :].view(np.float32).reshape(-1, 8)[:16, row]
            back = ((255 * high + low).reshape(16, 256) * scales[:, None]).reshape(8, 512)
            part = got[row, group * 8 : group * 8 + 8]
            assert np.abs(back - part).max() < 2e-5 * np.abs(part).max()


def test_a_rows_attention_does_not_depend_on_its_neighbours() -> None:
    rng = np.random.default_rng(5)
    q = torch.from_numpy(rng.standard_normal((3, 16, 512)).astype(np.float32)).cuda()
    window, compressed = (
        halves(rng.standard_normal((1, 136, 512))),
        halves(rng.standard_normal((1, 900, 512))),
    )
    sinks = torch.zeros(16, device="cuda")
    memory, outs = Slots(window, compressed), []
    for rows in ([0, 1, 2], [2]):
        out = torch.empty(len(rows), 16 * 512, device="cuda")
        where = memory.places([[400, 3000, 3500][r] for r in rows], [0] * len(rows))
        Attention(
            q[rows].contiguous(), memory.at[0], where, sinks, 128, EPS, 4, memory.at[1], out=out
        ).launch()
        outs.append(out)
    assert torch.equal(outs[0][2], outs[1][0])


def test_many_rows_lie_in_pieces_of_eight() -> None:
    rng = np.random.default_rng(6)
    q = torch.from_numpy(rng.standard_normal((16, 32, 512)).astype(np.float32)).cuda()
    memory = Slots(halves(rng.standard_normal((1, 136, 512))), halves(rng.standard_normal((1, 900, 512))))
    sinks = torch.zeros(32, device="cuda")

    def run(a: int, b: int, apart: torch.Tensor | None = None) -> torch.Tensor:
        image = Image(b - a, 16 * 512, DIGITS, groups=2)
        where = memory.places(
            [97 * row for row in range(a, b)], [0] * (b - a)
        )  # of the first few have no key
        for _ in range(2):  # the second finds what the first has left
            Attention(
                q[a:b].contiguous(), memory.at[0], where, sinks, 128, EPS, 4, memory.at[1], digits=image,
                apart=apart,
            ).launch()  # fmt: skip
        return image.data

    whole = run(0, 16)
    assert torch.equal(whole, torch.cat([run(0, 8), run(8, 16)]))
    left = torch.full((16, Attention.apart_floats(32)), float("nan"), device="cuda")
    assert torch.equal(whole, run(0, 16, left))  # where blocks stand alone the bits are the same
