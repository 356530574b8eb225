"""Hyper-connections of many rows, as calls of kernels/prefill_hyper.cu."""

import ctypes

import torch

from penstock.backend.cuda.device import card
from penstock.backend.cuda.inputs import FLOAT, INT, VOID, address
from penstock.backend.cuda.launch import kernel
from penstock.backend.cuda.prefill_products import HalfRows, HalfRowsArgument

STREAMS, MIX = 4, 24  # streams, and coefficients of a mix: pre 4, post 4, comb 16
MAX_HIDDEN = 8192
_ROWS, _PARTIAL = 16, 32
_STAGED = 2 * 10 * 32 * 16 + 16 * 25 * 4  # STAGED_BYTES and SUM_BYTES, of a warp
_PART = 112 << 10  # of the mixing matrix, at most: what is left of a block's shared memory


class _LeaveRows(ctypes.Structure):
    _fields_ = (
        ("streams", VOID), ("y", VOID), ("coefficients", VOID), ("fn", VOID), ("partial", VOID),
        ("fn_is_f32", INT), ("outs", INT), ("rows", INT), ("hidden", INT),
    )  # fmt: skip


class _CollapseRows(ctypes.Structure):
    _fields_ = (
        ("streams", VOID), ("partial", VOID), ("base", VOID), ("scale", VOID), ("coefficients", VOID), ("norm", VOID),
        ("out", HalfRowsArgument), ("rows", INT), ("hidden", INT), ("splits", INT), ("iterations", INT),
        ("eps", FLOAT),
        ("hc_eps", FLOAT),
    )  # fmt: skip


def _warps() -> int:
    """Of a block: eight, or four where eight would leave less than half of that."""
    return 8 if card().shared_limit - 8 * _STAGED > _PART // 2 else 4


def _part(hidden: int, splits: int, size: int) -> int:
    """Bytes of a split's part of the matrix in shared memory."""
    blocks = (hidden + 15) // 16  # of sixteen channels
    return STREAMS * MIX * (-(-blocks // splits) + 1) * 16 * size


def splits(hidden: int, fn: torch.dtype) -> int:
    """Into how many the channels are divided: by the shape and the kind of card alone, because the order of sums
    follows from it."""
    size = torch.empty(0, dtype=fn).element_size()
    room = min(_PART, card().shared_limit - _warps() * _STAGED)
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
    parts, warps = partial.shape[0] if partial is not None else 8, _warps()
    shared = warps * _STAGED + (_part(hidden, parts, fn.element_size()) if fn is not None else 0)
    found = kernel("prefill_hyper.cu", f"leave_and_mix_rows_{'f32' if f32 else 'f16'}_{warps}", shared)
    blocks = min(-(-rows // _ROWS), max(1, card().multiprocessors // parts))
    found.launch((blocks, parts), 32 * warps, (argument,))


def collapse(
    streams: torch.Tensor, partial: torch.Tensor, base: torch.Tensor, scale: torch.Tensor,
    coefficients: torch.Tensor, norm: torch.Tensor, out: HalfRows, eps: float, hc_eps: float, iterations: int,
) -> None:  # fmt: skip
    """The second half of a mix: coefficients [rows, 24], and the sublayer's input, normed.  base [24], scale [3]"""
    rows, _, hidden = streams.shape
    if hidden > MAX_HIDDEN:
        raise ValueError(f"hyper-connections of {hidden} channels, at most {MAX_HIDDEN}")
    argument = _CollapseRows(
        address(streams), address(partial), address(base), address(scale), address(coefficients), address(norm),
        out.argument(), rows, hidden, partial.shape[0], iterations, eps, hc_eps,
    )  # fmt: skip
    kernel("prefill_hyper.cu", "collapse_rows").launch(rows, 256, (argument,))
