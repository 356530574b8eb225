"""From logits to tokens on the card, as typed calls of kernels/sample.cu: greedy, or one draw at a temperature."""

import ctypes

import torch

from penstock.backend.cuda.inputs import INT, VOID, address
from penstock.backend.cuda.launch import module

PARTS = 64


class _Sample(ctypes.Structure):
    _fields_ = (
        ("logits", VOID), ("mask", VOID), ("temperatures", VOID), ("chances", VOID), ("best", VOID), ("sums", VOID),
        ("tokens", VOID), ("vocabulary", INT), ("stride", INT), ("words", INT),
    )  # fmt: skip


class Sample:
    """logits [rows, vocabulary] → tokens int32 [rows]; −1 where a logit is NaN.

    temperatures float32 [rows], 0 for greedy (ties to the lower id); chances float64 [rows] of [0, 1);
    mask int32 [rows, words]: bit i of the words allows token i.
    """

    def __init__(
        self, logits: torch.Tensor, temperatures: torch.Tensor, chances: torch.Tensor, tokens: torch.Tensor,
        mask: torch.Tensor | None = None,
    ):  # fmt: skip
        rows, vocabulary = logits.shape
        best = torch.empty(rows, PARTS, dtype=torch.int64, device="cuda")
        sums = torch.empty(rows, PARTS, dtype=torch.float64, device="cuda")
        self._argument = _Sample(
            address(logits), address(mask), address(temperatures), address(chances), address(best), address(sums),
            address(tokens), vocabulary, logits.stride(0), mask.shape[1] if mask is not None else 0,
        )  # fmt: skip
        self._keep = (logits, temperatures, chances, tokens, mask, best, sums)
        self._rows = rows
        self._kernels = [
            module("sample.cu").kernel(name) for name in ("sample_best", "sample_sums", "sample_draw")
        ]

    def launch(self, overlap: bool = True) -> None:
        for kernel, parts in zip(self._kernels, (PARTS, PARTS, 1), strict=True):
            kernel.launch((parts, self._rows), 256, (self._argument,), overlap)
