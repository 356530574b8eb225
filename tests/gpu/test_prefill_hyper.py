"""Hyper-connections of many rows against float64 (spec §3.2, §3.3)."""

import numpy as np
import pytest
import torch

from penstock.backend.cuda.prefill_hyper import collapse, leave_and_mix, partial_sums
from penstock.backend.cuda.prefill_products import HalfRows
from tests.gpu import reference as ref

EPS = 1e-6
# Where a column of 32 lies (kernels/unpack.cuh)
PLACE = np.array([(c >> 2 & 1) * 16 + (c >> 1 & 1) * 8 + (c >> 3) * 2 + (c & 1) for c in range(32)])


def floats(x: HalfRows, width: int) -> ref.Floats:
    """The numbers that products see."""
    assert x.scales is not None
    planes = x.halves.double().cpu().numpy()
    whole: ref.Floats = planes.sum(axis=0).reshape(x.rows, -1, 32)[:, :, PLACE].reshape(x.rows, -1)
    out: ref.Floats = whole[:, :width] * x.scales.double().cpu().numpy()[:, None]
    return out


def mixing(streams: ref.Floats, fn: ref.Floats, base: ref.Floats, scale: ref.Floats) -> ref.Floats:
    rows = len(streams)
    mix = ref.rms_norm(streams.reshape(rows, -1), 1.0, EPS) @ fn.T
    v = mix * np.repeat(scale, [4, 4, 16]) + base
    pre, post = 1 / (1 + np.exp(-v[:, :4])) + EPS, 2 / (1 + np.exp(-v[:, 4:8]))
    a = v[:, 8:].reshape(rows, 4, 4)
    c = np.exp(a - a.max(axis=2, keepdims=True))
    c = c / c.sum(axis=2, keepdims=True) + EPS
    c /= c.sum(axis=1, keepdims=True) + EPS
    for _ in range(19):
        c /= c.sum(axis=2, keepdims=True) + EPS
        c /= c.sum(axis=1, keepdims=True) + EPS
    return np.concatenate([pre, post, c.reshape(rows, 16)], axis=1)


@pytest.mark.parametrize("hidden", [4096, 7168, 256, 100])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_out_of_one_sublayer_and_into_the_next(hidden: int, dtype: torch.dtype) -> None:
    rng = np.random.default_rng(hidden)
    rows = 45
    streams = (rng.standard_normal((rows, 4, hidden)) * np.exp(3 * rng.standard_normal((rows, 1, 1)))).astype(
        np.float32
    )
    y, before = (
        rng.standard_normal((rows, hidden)).astype(np.float32),
        rng.random((rows, 24)).astype(np.float32),
    )
    fn = torch.from_numpy(rng.standard_normal((24, 4 * hidden)) * 0.02).to(dtype).cuda()
    base, scale = rng.standard_normal(24).astype(np.float32), rng.random(3).astype(np.float32)
    norm = (rng.random(hidden) + 0.5).astype(np.float32)
    on_card = [torch.from_numpy(a).cuda() for a in (streams, y, before, base, scale, norm)]
    partial, coefficients, x = (
        torch.empty(partial_sums(rows, hidden, dtype), device="cuda"),
        torch.full((rows, 24), float("nan"), device="cuda"),
        HalfRows.empty(rows, hidden, 2),
    )
    leave_and_mix(on_card[0], on_card[1], on_card[2], fn, partial)
    collapse(on_card[0], partial, on_card[3], on_card[4], coefficients, on_card[5], x, EPS, EPS, 20)
    comb = before[:, 8:].astype(np.float64).reshape(rows, 4, 4)
    after = np.einsum("rij,rid->rjd", comb, streams.astype(np.float64))
    after += before[:, 4:8].astype(np.float64)[:, :, None] * y[:, None]
    assert ref.error(on_card[0].cpu().numpy(), after) < 1e-6
    exact = on_card[0].double().cpu().numpy()
    mix = mixing(exact, fn.double().cpu().numpy(), base.astype(np.float64), scale.astype(np.float64))
    assert ref.error(coefficients.cpu().numpy(), mix) < 5e-6
    wanted = ref.rms_norm(np.einsum("rn,rnd->rd", mix[:, :4], exact), norm.astype(np.float64), EPS)
    assert ref.error(floats(x, hidden).astype(np.float32), wanted) < 5e-6
    # The first plane alone has eleven bits.
    x.halves = x.halves[:1]
    assert ref.error(floats(x, hidden).astype(np.float32), wanted) < 5e-4


def test_entering_alone_and_leaving_alone() -> None:
    rng = np.random.default_rng(1)
    rows, hidden = 20, 512
    streams = torch.from_numpy(rng.standard_normal((rows, 4, hidden)).astype(np.float32)).cuda()
    y = torch.from_numpy(rng.standard_normal((rows, hidden)).astype(np.float32)).cuda()
    coefficients = torch.from_numpy(rng.random((rows, 24)).astype(np.float32)).cuda()
    fn = torch.from_numpy(rng.standard_normal((24, 4 * hidden)) * 0.02).half().cuda()
    both, apart = streams.clone(), streams.clone()
    partials = [torch.empty(partial_sums(rows, hidden, torch.float16), device="cuda") for _ in range(2)]
    leave_and_mix(both, y, coefficients, fn, partials[0])
    leave_and_mix(apart, y, coefficients, None, None)
    assert torch.equal(both, apart)
    leave_and_mix(apart, None, None, fn, partials[1])
    assert torch.equal(both, apart)
    assert torch.equal(partials[0][:, :, :25], partials[1][:, :, :25])
