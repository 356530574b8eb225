"""Hyper-connections against float64 (spec §3.2, §3.3, §3.13)."""

import numpy as np
import pytest
import torch

from penstock.backend.cuda.device import Card, card
from penstock.backend.cuda.hyper import LeaveAndCollapse, LeaveAndEnter
from penstock.backend.cuda.inputs import DIGITS, FLOATS, HALVES, Image
from tests.gpu import reference as ref

EPS, HC_EPS = 1e-6, 1e-6
clusters = pytest.mark.skipif(not card().bulk, reason="no clusters of blocks on this card")


def sigmoid(v: ref.Floats) -> ref.Floats:
    return 1 / (1 + np.exp(-v))


def coefficients(mix: ref.Floats, base: ref.Floats, scale: ref.Floats, iterations: int = 20) -> ref.Floats:
    """mix [24] → pre 4, post 4, comb 16"""
    pre = sigmoid(mix[:4] * scale[0] + base[:4]) + HC_EPS
    post = 2 * sigmoid(mix[4:8] * scale[1] + base[4:8])
    a = (mix[8:] * scale[2] + base[8:]).reshape(4, 4)
    c = np.exp(a - a.max(axis=1, keepdims=True))
    c = c / c.sum(axis=1, keepdims=True) + HC_EPS
    c = c / (c.sum(axis=0) + HC_EPS)
    for _ in range(iterations - 1):
        c = c / (c.sum(axis=1, keepdims=True) + HC_EPS)
        c = c / (c.sum(axis=0) + HC_EPS)
    return np.concatenate([pre, post, c.reshape(-1)])


def test_golden_coefficients() -> None:
    """The reference above gives the numbers of the model's description."""
    k = np.arange(24)
    got = coefficients(0.1 * ((7 * k) % 24) - 1.1, 0.05 * (k % 5) - 0.1, np.array([0.5, 1, 2]))
    np.testing.assert_allclose(got[:4], [0.34299054, 0.43782450, 0.53743085, 0.63413659], atol=1e-8)
    np.testing.assert_allclose(got[8:12], [0.04798600, 0.08519729, 0.82668074, 0.04013837], atol=1e-8)


def decoded(image: Image, row: int) -> tuple[ref.Floats, ref.Floats]:
    """A row of an image of digits and halves."""
    raw, columns, rows = image.data[0, 0].cpu().numpy(), image.columns, image.rows
    scales = raw[-(columns // 256 + 1) * 32 :].view(np.float32).reshape(-1, 8)
    high, low = (
        raw[(2 * row + k) * (columns + 32) :][:columns].view(np.int8).astype(np.float64) for k in (0, 1)
    )
    digits = (255 * high + low).reshape(-1, 256) * scales[:-1, row][:, None]
    start = 2 * rows * (columns + 32)
    parts = [
        raw[start + (2 * row + k) * (2 * columns + 32) :][: 2 * columns].view(np.float16) for k in (0, 1)
    ]
    halves = (parts[0].astype(np.float64) + parts[1].astype(np.float64)) * scales[-1, row]
    return digits.reshape(-1), halves


@clusters
@pytest.mark.parametrize("hidden", [4096, 256, 320, 7168])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_out_of_one_sublayer_into_the_next(hidden: int, dtype: torch.dtype) -> None:
    rng = np.random.default_rng(1)
    rows = 3
    streams = rng.standard_normal((rows, 4, hidden)).astype(np.float32) * 3
    y = rng.standard_normal((rows, hidden)).astype(np.float32)
    fn = torch.randn(24, 4 * hidden, generator=torch.Generator().manual_seed(2)).mul(0.05).to(dtype)
    before = rng.random((rows, 24)).astype(np.float32)
    base, scale = rng.standard_normal(24).astype(np.float32), np.array([0.7, 1.1, 1.6], np.float32)
    norm = (rng.random(hidden) + 0.5).astype(np.float32)

    def cuda(a: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(a).cuda()

    out = torch.full((rows, 4, hidden), float("nan"), device="cuda")
    after, x = (
        torch.full((rows, 24), float("nan"), device="cuda"),
        torch.full((rows, hidden), float("nan"), device="cuda"),
    )
    image = Image(rows, hidden, DIGITS | HALVES)
    LeaveAndEnter(
        out, fn.cuda(), cuda(base), cuda(scale), after, cuda(norm), image, EPS, HC_EPS, 20, cuda(streams), cuda(y),
        cuda(before), x=x,
    ).launch()  # fmt: skip

    comb = before[:, 8:].reshape(rows, 4, 4).astype(np.float64)
    wanted = before[:, 4:8, None] * y[:, None].astype(np.float64) + np.einsum("rij,rid->rjd", comb, streams)
    assert ref.error(out.cpu().numpy(), wanted) < 1e-6
    for row in range(rows):
        z = ref.rms_norm(wanted[row].reshape(-1), 1.0, EPS)
        c = coefficients(fn.double().numpy() @ z, base.astype(np.float64), scale.astype(np.float64))
        assert ref.error(after[row].cpu().numpy(), c) < 5e-6
        collapsed = c[:4] @ wanted[row]
        assert ref.error(x[row].cpu().numpy(), collapsed) < 5e-6
        normed = ref.rms_norm(collapsed, norm.astype(np.float64), EPS)
        digits, halves = decoded(image, row)
        assert np.abs(digits[:hidden] - normed).max() < 3e-5 * np.abs(normed).max()
        assert np.abs(halves[:hidden] - normed).max() < 5e-6 * np.abs(normed).max()


@clusters
def test_embeddings_enter_and_the_head_leaves() -> None:
    rows, hidden, vocabulary = 2, 512, 10
    table = torch.randn(vocabulary, hidden).half().cuda()
    tokens = torch.tensor([7, 3], dtype=torch.int32, device="cuda")
    fn = torch.randn(4, 4 * hidden).mul(0.05).half().cuda()
    out = torch.empty(rows, 4, hidden, device="cuda")
    base, scale, norm = torch.randn(4).cuda(), torch.tensor([0.9]).cuda(), torch.ones(hidden).cuda()
    after, image = torch.empty(rows, 24, device="cuda"), Image(rows, hidden, DIGITS)
    x = torch.empty(rows, hidden, device="cuda")
    LeaveAndEnter(
        out, fn, base, scale, after, norm, image, EPS, HC_EPS, embeddings=table, tokens=tokens, x=x
    ).launch()
    e = table[tokens.long()].double().cpu().numpy()
    assert np.array_equal(out.cpu().numpy(), np.repeat(e[:, None], 4, axis=1).astype(np.float32))
    for row in range(rows):
        z = ref.rms_norm(np.tile(e[row], 4), 1.0, EPS)
        pre = sigmoid(fn.double().cpu().numpy() @ z * 0.9 + base.double().cpu().numpy()) + HC_EPS
        assert ref.error(x[row].cpu().numpy(), pre.sum() * e[row]) < 5e-6


@clusters
@pytest.mark.parametrize("limit", [16, 8])
def test_a_rows_bits_depend_on_neither_its_neighbours_nor_the_blocks_it_has(
    limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    hidden, rng = 7168, torch.Generator("cuda").manual_seed(3)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=rng, device="cuda")

    streams, y, before = random(5, 4, hidden), random(5, hidden), random(5, 24)
    fn, base, scale, norm = random(24, 4 * hidden).mul(0.02).half(), random(24), random(3), random(hidden)

    def run(rows: list[int]) -> list[torch.Tensor]:
        out, after, x = random(len(rows), 4, hidden), random(len(rows), 24), random(len(rows), hidden)
        image = Image(len(rows), hidden, FLOATS)
        LeaveAndEnter(
            out, fn, base, scale, after, norm, image, EPS, HC_EPS, 20, streams[rows], y[rows], before[rows], x=x
        ).launch()  # fmt: skip
        floats = image.data[0, 0].view(torch.float32)[: len(rows) * (hidden + 8)].view(len(rows), -1)
        return [part[-1].clone() for part in (out, after, x, floats[:, :hidden])]

    wanted = run([0, 1, 2, 4])
    monkeypatch.setattr(Card, "cluster_limit", limit)
    for a, b in zip(run([4]), wanted, strict=True):
        assert torch.equal(a, b)


@clusters
def test_many_rows_lie_in_pieces_of_eight() -> None:
    hidden, rng = 512, torch.Generator("cuda").manual_seed(4)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=rng, device="cuda")

    streams, y, before = random(16, 4, hidden), random(16, hidden), random(16, 24)
    fn, base, scale, norm = random(24, 4 * hidden).mul(0.02).half(), random(24), random(3), random(hidden)

    def run(a: int, b: int) -> torch.Tensor:
        out, after, image = random(b - a, 4, hidden), random(b - a, 24), Image(b - a, hidden, DIGITS | HALVES)
        LeaveAndEnter(
            out, fn, base, scale, after, norm, image, EPS, HC_EPS, 20, streams[a:b], y[a:b], before[a:b]
        ).launch()  # fmt: skip
        return image.data

    assert torch.equal(run(0, 16), torch.cat([run(0, 8), run(8, 16)]))


@pytest.mark.parametrize("hidden", [4096, 256, 320, 7168])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("outs", [24, 4])
def test_without_clusters(hidden: int, dtype: torch.dtype, outs: int) -> None:
    """A sublayer's output goes into the streams where they lie; a head, behind the last, only collapses them.  A row
    has the same bits alone."""
    rng, rows = np.random.default_rng(5), 3
    streams = rng.standard_normal((rows, 4, hidden)).astype(np.float32) * 3
    y = rng.standard_normal((rows, hidden)).astype(np.float32)
    fn = torch.randn(outs, 4 * hidden, generator=torch.Generator().manual_seed(6)).mul(0.05).to(dtype)
    before = rng.random((rows, 24)).astype(np.float32)
    base, scale = rng.standard_normal(24).astype(np.float32), np.array([0.7, 1.1, 1.6], np.float32)
    leaves = outs == 24

    def run(some: list[int]) -> list[torch.Tensor]:
        def cuda(a: np.ndarray) -> torch.Tensor:
            return torch.from_numpy(a[some]).cuda()

        now, mix = cuda(streams), cuda(before)
        x, parts = (
            torch.full((len(some), n), float("nan"), device="cuda")
            for n in (hidden, LeaveAndCollapse.parts_floats(hidden))
        )
        LeaveAndCollapse(
            now, fn.cuda(), torch.from_numpy(base[:outs]).cuda(), torch.from_numpy(scale).cuda(), mix, x, parts,
            EPS, HC_EPS, 20, cuda(y) if leaves else None,
        ).launch()  # fmt: skip
        return [now, mix[:, :outs], x]

    now, mix, x = run([0, 1, 2])
    comb = before[:, 8:].reshape(rows, 4, 4).astype(np.float64)
    wanted = streams.astype(np.float64)
    if leaves:
        wanted = before[:, 4:8, None] * y[:, None].astype(np.float64) + np.einsum(
            "rij,rid->rjd", comb, streams
        )
    assert ref.error(now.cpu().numpy(), wanted) < 1e-6
    for row in range(rows):
        z = fn.double().numpy() @ ref.rms_norm(wanted[row].reshape(-1), 1.0, EPS)
        if leaves:
            c = coefficients(z, base.astype(np.float64), scale.astype(np.float64))
        else:
            c = sigmoid(z * scale[0] + base[:4]) + HC_EPS
        assert ref.error(mix[row].cpu().numpy(), c) < 5e-6
        assert ref.error(x[row].cpu().numpy(), c[:4] @ wanted[row]) < 5e-6
    for a, b in zip(run([2]), (now, mix, x), strict=True):
        assert torch.equal(a[0], b[2])
