"""What a DSpark module has besides the kernels of layers, as typed calls of kernels/dspark.cu."""

import ctypes

import torch

from penstock.backend.cuda.device import card
from penstock.backend.cuda.inputs import INT, VOID, address
from penstock.backend.cuda.launch import module

THREADS = 256


class _MeanStreams(ctypes.Structure):
    _fields_ = (
        ("streams", VOID), ("y", VOID), ("mix", VOID), ("some", VOID), ("out", VOID),
        ("n", INT), ("hidden", INT), ("mix_stride", INT), ("out_stride", INT),
    )  # fmt: skip


class MeanStreams:
    """streams [rows, n, hidden] → their mean, out [rows, hidden].

    y [rows, hidden], mix [rows, …]: what is still to go into the streams, which stay as they are; some: int32, the
    rows that are wanted, in place of all"""

    def __init__(
        self, streams: torch.Tensor, y: torch.Tensor | None, mix: torch.Tensor | None, out: torch.Tensor,
        some: torch.Tensor | None = None,
    ):  # fmt: skip
        _, n, hidden = streams.shape
        self._argument = _MeanStreams(
            address(streams), address(y), address(mix), address(some), address(out), n, hidden,
            0 if mix is None else mix.stride(0), out.stride(0),
        )  # fmt: skip
        self._keep, self._grid = (streams, y, mix, out, some), (-(-hidden // THREADS), len(out))
        self._kernel = module("dspark.cu").kernel("mean_streams")

    def launch(self, overlap: bool = True) -> None:
        self._kernel.launch(self._grid, THREADS, (self._argument,), overlap)


class _Sureness(ctypes.Structure):
    _fields_ = (
        ("streams", VOID), ("mix", VOID), ("confidence", VOID), ("sure", VOID),
        ("n", INT), ("hidden", INT), ("mix_stride", INT),
    )  # fmt: skip


class Sureness:
    """streams [rows, n, hidden], folded by the first n of mix [rows, …], times confidence [hidden] → sure [rows]"""

    def __init__(
        self, streams: torch.Tensor, mix: torch.Tensor, confidence: torch.Tensor, sure: torch.Tensor
    ):
        _, n, hidden = streams.shape
        self._argument = _Sureness(
            address(streams), address(mix), address(confidence), address(sure), n, hidden, mix.stride(0)
        )
        self._keep = (streams, mix, confidence, sure)
        self._kernel = module("dspark.cu").kernel("sureness")

    def launch(self, overlap: bool = True) -> None:
        self._kernel.launch(len(self._keep[-1]), THREADS, (self._argument,), overlap)


class _ChooseGuess(ctypes.Structure):
    _fields_ = (
        ("logits", VOID), ("added", VOID), ("said", VOID), ("confidence", VOID), ("sure", VOID), ("best", VOID),
        ("counter", VOID), ("found", VOID), ("vocabulary", INT), ("rank", INT),
    )  # fmt: skip


class ChooseGuess:
    """The best of logits + added, both [vocabulary] → found int32 [2]: the token, and its chance as a float's bits.

    said, confidence [rank]; sure [1]: see `Sureness`; best: int64 [2] of zeros, which it leaves so"""

    def __init__(
        self, logits: torch.Tensor, added: torch.Tensor, said: torch.Tensor, confidence: torch.Tensor,
        sure: torch.Tensor, best: torch.Tensor, found: torch.Tensor,
    ):  # fmt: skip
        self._argument = _ChooseGuess(
            address(logits), address(added), address(said), address(confidence), address(sure), address(best),
            address(best) + 8, address(found), logits.numel(), confidence.numel(),
        )  # fmt: skip
        self._keep = (logits, added, said, confidence, sure, best, found)
        self._grid = min(card().multiprocessors, -(-logits.numel() // THREADS))
        self._kernel = module("dspark.cu").kernel("choose_guess")

    def launch(self, overlap: bool = True) -> None:
        self._kernel.launch(self._grid, THREADS, (self._argument,), overlap)
