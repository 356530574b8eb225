"""What sampling asks of a row of logits.  The vocabulary is large, so each of these looks at it once."""

from ctypes import byref, c_float

import numpy as np
from numpy.typing import NDArray

from penstock.kernels.cpu import parallel
from penstock.kernels.cpu.library import expect, native

Logits = NDArray[np.float32]


def _at(logits: Logits) -> int:
    expect(
        logits.dtype == np.float32 and logits.ndim == 1 and logits.flags.c_contiguous and logits.size > 0,
        f"logits: expected contiguous float32 [vocab], found {logits.dtype} {list(logits.shape)}",
    )
    return logits.ctypes.data


def top(logits: Logits) -> tuple[int, float]:
    """The token with the highest logit, ties to the lower id, and that logit; (−1, …) if one is NaN."""
    found = c_float()
    token: int = native().ps_logits_top(_at(logits), logits.size, byref(found))
    return token, found.value


def log_sum(logits: Logits, highest: float) -> float:
    """ln Σ e^logit"""
    total: float = native().ps_logits_weights(
        _at(logits), logits.size, highest, 1.0, None, parallel.threads()
    )
    return highest + float(np.log(total))


def draw(
    logits: Logits, highest: float, temperature: float, top_k: int, top_p: float, min_p: float, chance: float
) -> int:
    """One token by weight e^(logit / temperature), among those that the filters leave.

    0 ≤ chance < 1 says which: tokens stand in order of id, each as wide as its weight.  The filters, in this order:
    the best top_k (0: all), then as few of the best as make up top_p, then those with min_p of the best one's weight.
    """
    weights, size = np.empty_like(logits), logits.size
    at = _at(weights)
    factor = min(1.0 / temperature, 1e30)  # finite also where it is rounded to float32
    total = native().ps_logits_weights(_at(logits), size, highest, factor, at, parallel.threads())
    if top_k or top_p < 1 or min_p > 0:
        total = native().ps_logits_filter(at, size, total, top_k, top_p, min_p)
    token: int = native().ps_logits_draw(at, size, chance * total)
    return token


def best(logits: Logits, count: int) -> NDArray[np.int64]:
    """The `count` tokens with the highest logits, best first, ties by rising id."""
    count = min(count, logits.size)
    block = 64
    whole = logits.size // block
    candidates = np.arange(logits.size)
    if count < whole:
        # At least `count` tokens reach the count-th highest of the blocks' maxima, and few others do.
        highest = logits[: whole * block].reshape(whole, block).max(axis=1)
        candidates = np.flatnonzero(logits >= np.partition(highest, whole - count)[whole - count])
    order = np.argsort(-logits[candidates], kind="stable")
    return candidates[order[:count]]
