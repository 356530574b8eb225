"""Hyper-connections, as typed calls of kernels/hyper.cu: out of one sublayer, into the next."""

import ctypes

import torch

from penstock.backend.cuda.device import card
from penstock.backend.cuda.inputs import FLOAT, INT, VOID, Image, InputsArgument, address, inputs_argument
from penstock.backend.cuda.launch import module
from penstock.backend.cuda.layouts import CELL

MAX_HIDDEN = 8192


class _LeaveAndEnter(ctypes.Structure):
    _fields_ = (
        ("streams", VOID), ("embeddings", VOID), ("tokens", VOID), ("y", VOID), ("before", VOID), ("out", VOID),
        ("fn", VOID), ("base", VOID), ("scale", VOID), ("coefficients", VOID), ("norm", VOID), ("image", VOID),
        ("x", VOID), ("outs", INT), ("rows", INT), ("hidden", INT), ("columns", INT), ("forms", INT),
        ("iterations", INT), ("eps", FLOAT), ("hc_eps", FLOAT),
    )  # fmt: skip


class _MakeImage(ctypes.Structure):
    _fields_ = (("inputs", InputsArgument), ("image", VOID), ("rows", INT), ("columns", INT), ("forms", INT))


class LeaveAndEnter:
    """Out of one sublayer, into the next: new streams [rows, 4, hidden], their coefficients [rows, 24], and what they
    collapse to, normed, as an image; x [rows, hidden]: before the norm.

    y [rows, hidden] leaves its sublayer with the coefficients `before` of the streams that entered it; without y the
    streams pass unchanged; without streams they are the tokens' embeddings (F16 [vocabulary, hidden]).
    base [24], scale [3]; or, for the model's head, [4] and [1].
    """

    @staticmethod
    def takes(hidden: int) -> bool:
        return hidden <= MAX_HIDDEN and hidden % 8 == 0

    def __init__(
        self, out: torch.Tensor, fn: torch.Tensor, base: torch.Tensor, scale: torch.Tensor,
        coefficients: torch.Tensor, norm: torch.Tensor, image: Image, eps: float, hc_eps: float, iterations: int = 20,
        streams: torch.Tensor | None = None, y: torch.Tensor | None = None, before: torch.Tensor | None = None,
        embeddings: torch.Tensor | None = None, tokens: torch.Tensor | None = None, x: torch.Tensor | None = None,
    ):  # fmt: skip
        rows, _, hidden = out.shape
        if not self.takes(hidden):
            raise ValueError(f"streams of eights of channels, at most {MAX_HIDDEN}, not {hidden}")
        self._argument = _LeaveAndEnter(
            address(streams), address(embeddings), address(tokens), address(y), address(before), address(out),
            address(fn), address(base), address(scale), address(coefficients), address(norm), address(image.data),
            address(x), fn.shape[0], rows, hidden, image.columns, image.forms, iterations, eps, hc_eps,
        )  # fmt: skip
        self._keep = (
            out, fn, base, scale, coefficients, norm, image, streams, y, before, embeddings, tokens, x
        )  # fmt: skip
        # A cell of 256 channels a block, as far as blocks can be together.
        cells = image.columns // CELL
        cluster = min(card().cluster_limit, max(2, 1 << (cells - 1).bit_length()))
        self._grid = (cluster, rows)
        name = f"leave_and_enter_{'f32' if fn.dtype == torch.float32 else 'f16'}"
        self._kernel = module("hyper.cu").kernel(name, cluster=cluster)

    def launch(self, overlap: bool = True) -> None:
        self._kernel.launch(self._grid, 9 * 32, (self._argument,), overlap)


class _LeaveApart(ctypes.Structure):
    _fields_ = (
        ("streams", VOID), ("y", VOID), ("mix", VOID), ("fn", VOID), ("parts", VOID), ("outs", INT), ("hidden", INT),
    )  # fmt: skip


class _CollapseApart(ctypes.Structure):
    _fields_ = (
        ("streams", VOID), ("parts", VOID), ("base", VOID), ("scale", VOID), ("mix", VOID), ("x", VOID),
        ("outs", INT), ("hidden", INT), ("x_stride", INT), ("iterations", INT), ("eps", FLOAT), ("hc_eps", FLOAT),
    )  # fmt: skip


class LeaveAndCollapse:
    """The same on cards without clusters, as far as the input before its norm: streams [rows, 4, hidden], in place,
    their coefficients [rows, 24], and x [rows, hidden].

    y [rows, hidden] leaves its sublayer with the coefficients that are there before.
    parts: float32 [rows, `parts_floats`], nobody else's meanwhile"""

    @staticmethod
    def parts_floats(hidden: int) -> int:
        return 25 * -(-hidden // CELL)

    def __init__(
        self, streams: torch.Tensor, fn: torch.Tensor, base: torch.Tensor, scale: torch.Tensor,
        coefficients: torch.Tensor, x: torch.Tensor, parts: torch.Tensor, eps: float, hc_eps: float,
        iterations: int = 20, y: torch.Tensor | None = None,
    ):  # fmt: skip
        rows, _, hidden = streams.shape
        outs = fn.shape[0]
        self._arguments = (
            _LeaveApart(
                address(streams), address(y), address(coefficients), address(fn), address(parts), outs, hidden
            ),
            _CollapseApart(
                address(streams), address(parts), address(base), address(scale), address(coefficients), address(x),
                outs, hidden, x.stride(0), iterations, eps, hc_eps,
            ),
        )  # fmt: skip
        self._keep = (streams, fn, base, scale, coefficients, x, parts, y)
        self._grid = (-(-hidden // CELL), rows)
        source = module("hyper.cu")
        self._leave = source.kernel(f"leave_apart_{'f32' if fn.dtype == torch.float32 else 'f16'}")
        self._collapse = source.kernel("collapse_apart")

    def launch(self, overlap: bool = True) -> None:
        leave, collapse = self._arguments
        self._leave.launch(self._grid, 256, (leave,), overlap)
        self._collapse.launch(self._grid, 9 * 32, (collapse,), overlap)


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
