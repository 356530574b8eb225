"""A draft block's guesses, all of them in one native call."""

from collections.abc import Callable, Sequence
from ctypes import c_float, c_int64
from typing import Final

import numpy as np

from penstock.backend import deepseek_v4 as v4
from penstock.backend.base import DeviceWeight, ExpertTable
from penstock.backend.cpu.deepseek_v4.described import Described, weight_of
from penstock.backend.cpu.memory import Buffer
from penstock.backend.cpu.weights import CpuExpertTable
from penstock.backend.state import DRAFTS
from penstock.native.library import native

MOST: Final = 2 + DRAFTS  # pairs at a time: those that may have waited, and the newest


class CpuGuesser(v4.Guesser):
    """draft: a structs.Draft; state_at(slot, position): where a sequence's state of the block is described; chosen:
    experts of a guess."""

    def __init__(
        self, draft: Described, state_at: Callable[[int, int], int], chosen: int, vocab: int, threads: int
    ):
        self._draft, self._state_at, self._threads = draft, state_at, threads
        self._ids = np.empty((DRAFTS, chosen), np.int64)
        self._ids_at: int = self._ids.ctypes.data
        self._tokens = (c_int64 * MOST)()
        self._guesses, self._chances = (c_int64 * DRAFTS)(), (c_float * DRAFTS)()
        self._memory = Buffer(
            np.empty(native().ps_draft_floats(self._draft.address, MOST, vocab), np.float32)
        )

    def run(
        self,
        slot: int,
        first: int,
        streams: Buffer,
        tokens: Sequence[int],
        most: int,
        least: float,
        table: ExpertTable,
        output: DeviceWeight,
    ) -> v4.Guesses:
        assert isinstance(table, CpuExpertTable)
        rows = len(tokens)
        self._tokens[:rows] = [*tokens]
        count = native().ps_draft_run(
            *(self._draft.address, table.address, len(table), weight_of(output).address),
            *(self._state_at(slot, first), streams.address, self._tokens, rows, min(most, DRAFTS), least),
            *(self._guesses, self._chances, self._ids_at, self._memory.address, self._threads),
        )
        found = list(zip(self._guesses[:count], self._chances[:count], strict=True))
        return v4.Guesses(found, self._ids[:count])
