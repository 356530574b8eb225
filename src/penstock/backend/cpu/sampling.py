"""What sampling asks of a row of logits.  The vocabulary is large, so each of these looks at it once."""

from collections.abc import Sequence
from ctypes import byref, c_double, c_float, c_int64, c_void_p

import numpy as np
from numpy.typing import NDArray

from penstock.backend.base import Logits, Sampling
from penstock.native.library import native


def _at(logits: Logits) -> int:
    if logits.dtype != np.float32 or logits.ndim != 1 or not logits.flags.c_contiguous or logits.size == 0:
        raise ValueError(
            f"logits: expected contiguous float32 [vocab], found {logits.dtype} {list(logits.shape)}"
        )
    return int(logits.ctypes.data)


class CpuSampling(Sampling):
    def __init__(self, threads: int):
        self._threads = threads

    def tops(self, rows: Sequence[Logits]) -> list[tuple[int, float, float]]:
        count = len(rows)
        ids, highest, sums = (c_int64 * count)(), (c_float * count)(), (c_double * count)()
        addresses = (c_void_p * count)(*map(_at, rows))
        native().ps_logits_rows(addresses, count, rows[0].size, ids, highest, sums, self._threads)
        return [
            (token, top, top + float(np.log(total)) if token >= 0 else 0.0)
            for token, top, total in zip(ids, highest, sums, strict=True)
        ]

    def top(self, logits: Logits) -> tuple[int, float]:
        found = c_float()
        token: int = native().ps_logits_top(_at(logits), logits.size, byref(found))
        return token, found.value

    def log_sum(self, logits: Logits, highest: float) -> float:
        total: float = native().ps_logits_weights(_at(logits), logits.size, highest, 1.0, None, self._threads)
        return highest + float(np.log(total))

    def draw(
        self,
        logits: Logits,
        highest: float,
        temperature: float,
        top_k: int,
        top_p: float,
        min_p: float,
        chance: float,
    ) -> int:
        weights, size = np.empty_like(logits), logits.size
        at = _at(weights)
        factor = min(1.0 / temperature, 1e30)  # finite also where it is rounded to float32
        total = native().ps_logits_weights(_at(logits), size, highest, factor, at, self._threads)
        if top_k or top_p < 1 or min_p > 0:
            total = native().ps_logits_filter(at, size, total, top_k, top_p, min_p)
        token: int = native().ps_logits_draw(at, size, chance * total)
        return token

    def best(self, logits: Logits, count: int) -> NDArray[np.int64]:
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
