"""Hyper-connections of many rows, as calls of kernels/prefill_hyper.cu."""

import ctypes
from typing import NamedTuple

import torch

from penstock.backend.cuda.device import card
from penstock.backend.cuda.inputs import FLOAT, INT, VOID, address
from penstock.backend.cuda.launch import kernel
from penstock.backend.cuda.prefill_products import HalfRows, HalfRowsArgument

STREAMS, MIX = 4, 24  # streams, and coefficients of a mix: pre 4, post 4, comb 16
MAX_HIDDEN = 8192
_ROWS, _PARTIAL = 16, 32
_STAGE, _SUMS = 10 * 32 * 16, 16 * 25 * 4  # bytes of STAGED_BYTES and SUM_BYTES, of a warp
_PART = 80 << 10  # of the mixing matrix, at most: what is left of a block's shared memory
_SHAPES = ((8, 3), (8, 2), (4, 2))  # warps of a block, and stages of each
_MIXED = 32  # rows of a block of `mix_rows`


class _LeaveRows(ctypes.Structure):
    _fields_ = (
        ("streams", VOID), ("y", VOID), ("coefficients", VOID), ("fn", VOID), ("partial", VOID),
        ("fn_is_f32", INT), ("outs", INT), ("rows", INT), ("hidden", INT),
    )  # fmt: skip


class _MixRows(ctypes.Structure):
    _fields_ = (
        ("partial", VOID), ("base", VOID), ("scale", VOID), ("coefficients", VOID), ("rows", INT), ("hidden", INT),
        ("splits", INT), ("iterations", INT), ("eps", FLOAT), ("hc_eps", FLOAT),
    )  # fmt: skip


class _CollapseRows(ctypes.Structure):
    _fields_ = (
        ("streams", VOID), ("coefficients", VOID), ("norm", VOID), ("out", HalfRowsArgument), ("hidden", INT),
        ("eps", FLOAT),
    )  # fmt: skip


class _Shape(NamedTuple):
    warps: int
    stages: int

    @property
    def staged(self) -> int:
        """Bytes of a block's shared memory, besides the matrix."""
        return self.warps * (self.stages * _STAGE + _SUMS)


def _shape() -> _Shape:
    """The first that leaves room for half of such a part; else the last."""
    shapes = [_Shape(*each) for each in _SHAPES]
    return next(
        (each for each in shapes if card().shared_limit - each.staged > _PART // 2),
        shapes[-1],
    )


def _part(hidden: int, splits: int, size: int) -> int:
    """Bytes of a split's part of the matrix in shared memory."""
    blocks = (hidden + 15) // 16  # of sixteen channels
    return STREAMS * MIX * (-(-blocks // splits) + 1) * 16 * size


def splits(hidden: int, fn: torch.dtype) -> int:
    """Into how many the channels are divided: by the shape and the kind of card alone, because the order of sums
    follows from it."""
    size = torch.empty(0, dtype=fn).element_size()
    room = min(_PART, card().shared_limit - _shape().staged)
    return next(n for n in range(1, 1 << 20) if _part(hidden, n, size) <= room)


def partial_sums(rows: int, hidden: int, fn: torch.dtype) -> tuple[int, int, int]:
    """The shape of what `leave_and_mix` gives to `collapse`, with a matrix of this type."""
    return splits(hidden, fn), rows, _PARTIAL


def leave_and_mix(
    streams: torch.Tensor, y: torch.Tensor | None, coefficients: torch.Tensor | None, fn: torch.Tensor | None,
    partial: torch.Tensor | None,
) -> None:  # fmt: skip
    """streams [rows, 4, hidden], in place: y [rows, hidden] leaves its sublayer with the coefficients [rows, 24] of
    the streams before it; then the first half of the mix with fn [24, 4 · hidden], float16 or float32.  Either may be
    missing."""
    rows, _, hidden = streams.shape
    f32 = fn is not None and fn.dtype == torch.float32
    argument = _LeaveRows(
        address(streams), address(y), address(coefficients), address(fn), address(partial), int(f32), MIX, rows,
        hidden,
    )  # fmt: skip
    parts, shape = partial.shape[0] if partial is not None else 8, _shape()
    shared = shape.staged + (_part(hidden, parts, fn.element_size()) if fn is not None else 0)
    name = f"leave_and_mix_rows_{'f32' if f32 else 'f16'}_{shape.warps}_{shape.stages}"
    blocks = min(-(-rows // _ROWS), max(1, card().multiprocessors // parts))
    kernel("prefill_hyper.cu", name, shared).launch((blocks, parts), 32 * shape.warps, (argument,))


def collapse(
    streams: torch.Tensor, partial: torch.Tensor, base: torch.Tensor, scale: torch.Tensor,
    coefficients: torch.Tensor, norm: torch.Tensor, out: HalfRows, eps: float, hc_eps: float, iterations: int,
) -> None:  # fmt: skip
    """The second half of a mix: coefficients [rows, 24], and the sublayer's input, normed.  base [24], scale [3]"""
    rows, _, hidden = streams.shape
    if hidden > MAX_HIDDEN:
        raise ValueError(f"hyper-connections of {hidden} channels, at most {MAX_HIDDEN}")
    mix = _MixRows(
        address(partial), address(base), address(scale), address(coefficients), rows, hidden, partial.shape[0],
        iterations, eps, hc_eps,
    )  # fmt: skip
    kernel("prefill_hyper.cu", "mix_rows").launch(-(-rows // _MIXED), 256, (mix,))
    argument = _CollapseRows(
        address(streams), address(coefficients), address(norm), out.argument(), hidden, eps
    )
    kernel("prefill_hyper.cu", "collapse_rows").launch(rows, 256, (argument,))
