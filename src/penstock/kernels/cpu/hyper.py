"""Hyper-connections: how the parallel residual streams enter and leave a sublayer."""

from typing import Final

from torch import Tensor

from penstock.kernels.cpu import parallel
from penstock.kernels.cpu.library import expect, floats, native
from penstock.kernels.ops import Mix

MAX_STREAMS: Final = 16  # what hyper.cpp has room for


def hyper_mix(mixes: Tensor, base: Tensor, scale: Tensor, streams: int, iterations: int, eps: float) -> Mix:
    mixes, base, scale = floats(mixes, "mixes"), floats(base, "base"), floats(scale, "scale")
    n, rows = streams, mixes.shape[0]
    width = (2 + n) * n
    expect(0 < n <= MAX_STREAMS, f"hyper_mix: {n} streams, expected 1 to {MAX_STREAMS}")
    expect(
        tuple(mixes.shape) == (rows, width) and base.numel() == width and scale.numel() == 3,
        f"hyper_mix: mixes {list(mixes.shape)}, base {list(base.shape)} and scale {list(scale.shape)} "
        f"do not fit {n} streams",
    )
    pre, post = mixes.new_empty(rows, n), mixes.new_empty(rows, n)
    comb = mixes.new_empty(rows, n, n)
    native().ps_hyper_mix(
        *(mixes.data_ptr(), base.data_ptr(), scale.data_ptr(), rows, n, iterations, eps),
        *(pre.data_ptr(), post.data_ptr(), comb.data_ptr(), parallel.threads()),
    )
    return Mix(pre, post, comb)


def hyper_gate(mixes: Tensor, base: Tensor, scale: Tensor, eps: float) -> Tensor:
    mixes = floats(mixes, "mixes")
    rows, n = mixes.shape
    base = floats(base.expand(n), "base")
    scale = floats(scale.expand(n), "scale")
    out = mixes.new_empty(rows, n)
    native().ps_hyper_gate(mixes.data_ptr(), base.data_ptr(), scale.data_ptr(), rows, n, eps, out.data_ptr())
    return out


def hyper_collapse(streams: Tensor, pre: Tensor) -> Tensor:
    streams, pre = floats(streams, "streams"), floats(pre, "pre")
    rows, n, hidden = streams.shape
    expect(
        tuple(pre.shape) == (rows, n),
        f"hyper_collapse: weights {list(pre.shape)} for streams {list(streams.shape)}",
    )
    out = streams.new_empty(rows, hidden)
    native().ps_hyper_collapse(
        *(streams.data_ptr(), pre.data_ptr(), rows, n, hidden, out.data_ptr(), parallel.threads())
    )
    return out


def hyper_expand(y: Tensor, streams: Tensor, mix: Mix) -> Tensor:
    y, streams = floats(y, "sublayer output"), floats(streams, "streams")
    post, comb = floats(mix.post, "post"), floats(mix.comb, "comb")
    rows, n, hidden = streams.shape
    expect(
        0 < n <= MAX_STREAMS
        and tuple(y.shape) == (rows, hidden)
        and tuple(post.shape) == (rows, n)
        and tuple(comb.shape) == (rows, n, n),
        f"hyper_expand: output {list(y.shape)}, post {list(post.shape)} and comb {list(comb.shape)} "
        f"do not fit streams {list(streams.shape)}",
    )
    out = streams.new_empty(rows, n, hidden)
    native().ps_hyper_expand(
        *(y.data_ptr(), streams.data_ptr(), post.data_ptr(), comb.data_ptr(), rows, n, hidden),
        *(out.data_ptr(), parallel.threads()),
    )
    return out
