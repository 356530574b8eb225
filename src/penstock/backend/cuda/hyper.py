"""Hyper-connections, as typed calls of kernels/hyper.cu: out of one sublayer, into the next."""

import ctypes

import torch

from penstock.backend.cuda.inputs import FLOAT, INT, VOID, Image, InputsArgument, address, inputs_argument
from penstock.backend.cuda.launch import module

MIX = 24  # pre 4, post 4, comb 16


class _Leave(ctypes.Structure):
    _fields_ = (
        ("streams", VOID), ("embeddings", VOID), ("tokens", VOID), ("y", VOID), ("coefficients", VOID), ("out", VOID),
        ("fn", VOID), ("partial", VOID), ("fn_is_f32", INT), ("outs", INT), ("rows", INT), ("hidden", INT),
    )  # fmt: skip


class _Collapse(ctypes.Structure):
    _fields_ = (
        ("streams", VOID), ("partial", VOID), ("base", VOID), ("scale", VOID), ("coefficients", VOID), ("norm", VOID),
        ("image", VOID), ("x", VOID), ("blocks", INT), ("partial_stride", INT),
        ("rows", INT), ("hidden", INT), ("columns", INT), ("forms", INT),
        ("head", INT), ("iterations", INT), ("eps", FLOAT), ("hc_eps", FLOAT),
    )  # fmt: skip


class _MakeImage(ctypes.Structure):
    _fields_ = (("inputs", InputsArgument), ("image", VOID), ("rows", INT), ("columns", INT), ("forms", INT))


def mix_blocks(hidden: int) -> int:
    return -(-4 * hidden // 256)


class LeaveAndMix:
    """New streams [rows, 4, hidden] and the first half of the next mix, partial [blocks, rows, 32].

    y [rows, hidden] leaves its sublayer with the coefficients [rows, 24] of the streams before it; without y the
    streams pass unchanged; without streams they are the tokens' embeddings (F16 [vocabulary, hidden]).
    """

    def __init__(
        self, out: torch.Tensor, fn: torch.Tensor, partial: torch.Tensor, streams: torch.Tensor | None = None,
        y: torch.Tensor | None = None, coefficients: torch.Tensor | None = None,
        embeddings: torch.Tensor | None = None, tokens: torch.Tensor | None = None,
    ):  # fmt: skip
        rows, _, hidden = out.shape
        self._argument = _Leave(
            address(streams), address(embeddings), address(tokens), address(y), address(coefficients), address(out),
            address(fn), address(partial), int(fn.dtype == torch.float32), fn.shape[0], rows, hidden,
        )  # fmt: skip
        self._keep = (out, fn, partial, streams, y, coefficients, embeddings, tokens)
        self._grid = mix_blocks(hidden)
        self._kernel = module("hyper.cu").kernel("leave_and_mix")

    def launch(self, overlap: bool = True) -> None:
        self._kernel.launch(self._grid, 256, (self._argument,), overlap)


class Collapse:
    """The second half of a mix: coefficients [rows, 24], and the sublayer's input, normed, as an image.

    base [24], scale [3]; or, for the model's head, [4] and [1]."""

    def __init__(
        self, streams: torch.Tensor, partial: torch.Tensor, base: torch.Tensor, scale: torch.Tensor,
        coefficients: torch.Tensor, norm: torch.Tensor, image: Image, eps: float, hc_eps: float, iterations: int = 20,
        x: torch.Tensor | None = None,
    ):  # fmt: skip
        rows, _, hidden = streams.shape
        if hidden > 2 * 16 * 256:
            raise ValueError(f"collapse: {hidden} channels, at most {2 * 16 * 256}")
        self._argument = _Collapse(
            address(streams), address(partial), address(base), address(scale), address(coefficients), address(norm),
            address(image.data), address(x), mix_blocks(hidden), partial.stride(0), rows, hidden, image.columns,
            image.forms, int(base.numel() == 4), iterations, eps, hc_eps,
        )  # fmt: skip
        self._keep = (streams, partial, base, scale, coefficients, norm, image, x)
        self._rows = rows
        self._kernel = module("hyper.cu").kernel("collapse")

    def launch(self, overlap: bool = True) -> None:
        self._kernel.launch(self._rows, 17 * 32, (self._argument,), overlap)


class MakeImage:
    """x [rows, width], normed if there is a norm → image"""

    def __init__(self, x: torch.Tensor, image: Image, norm: torch.Tensor | None = None, eps: float = 0.0):
        inputs = inputs_argument(x, norm, eps, image.width)
        self._argument = _MakeImage(inputs, address(image.data), image.rows, image.columns, image.forms)
        self._keep = (x, image, norm)
        self._rows = image.rows
        self._kernel = module("hyper.cu").kernel("make_image")

    def launch(self, overlap: bool = True) -> None:
        self._kernel.launch(self._rows, 256, (self._argument,), overlap)
