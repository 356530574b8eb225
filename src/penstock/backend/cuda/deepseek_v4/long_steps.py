"""What ops share in a long step: more rows than the kernels for few rows take, so prompts.

A long step is launched as it comes, without padding and without graphs: its kernels run for much longer than it takes
to launch them.  What it leaves in rings of recent rows goes to a copy of them, because it may be longer than a ring:
the copy takes the rings' place when the step is committed.
"""

import torch

from penstock.backend.base import Vector
from penstock.backend.cuda.deepseek_v4.batch import Batch
from penstock.backend.cuda.deepseek_v4.long_memory import LongMemory
from penstock.backend.cuda.prefill_attention import LongPlaces
from penstock.backend.cuda.prefill_hyper import MIX, collapse, leave_and_mix, partial_sums
from penstock.backend.cuda.prefill_products import HalfRows
from penstock.backend.state import Step


class LongBatch(Batch):
    """One long step."""

    def __init__(self, step: Step, blocks: range, memory: LongMemory):
        super().__init__(step, step.rows, blocks)
        self.memory, pool = memory, memory.pool
        self.tokens = torch.from_numpy(step.tokens).to(torch.int32).cuda()
        self._places: dict[int, LongPlaces] = {}
        self._tails: dict[int, tuple[LongBatch, torch.Tensor]] = {}
        self._sequences = list[tuple[int, int, int, int]]()
        for slot, _, rows, position in self.sequences():
            pool.ensure(slot, position + rows)
            self._sequences.append((pool.address(slot), pool.stage(slot), position, rows))

    def tail(self, most: int) -> tuple["LongBatch", torch.Tensor]:
        """A batch of at most the last `most` rows of every sequence, and which of this one's they are, int32."""
        if most not in self._tails:
            step, sequences, rows = self.step, list[tuple[int, int, list[int], int]](), list[range]()
            for slot, start, count, _ in self.sequences():
                stop = start + count
                rows.append(range(max(start, stop - most), stop))
                tokens = step.tokens[rows[-1].start : stop].tolist()
                sequences.append((slot, int(step.positions[rows[-1].start]), tokens, 0))
            some = torch.cat([torch.tensor(each, dtype=torch.int32) for each in rows]).cuda()
            self._tails[most] = LongBatch(Step.of(sequences), self.blocks, self.memory), some
        return self._tails[most]

    def places(self, frequencies: Vector) -> LongPlaces:
        """Where the rows stand, with rotations for these frequencies."""
        found = self._places.get(id(frequencies))
        if found is None:
            on_card, others = self.memory.frequencies(frequencies), list(self._places.values())
            found = others[0].turned(on_card) if others else LongPlaces.of(self._sequences, on_card)
            self._places[id(frequencies)] = found
        return found


class LongStreams:
    """[rows, 4, hidden], changed in place."""

    def __init__(self, now: torch.Tensor):
        self.now, self.rows = now, len(now)
        self.pending: tuple[torch.Tensor, torch.Tensor] | None = None  # a sublayer's output and its mix

    def settle(self) -> torch.Tensor:
        """With nothing left to be added."""
        if self.pending is not None:
            leave_and_mix(self.now, *self.pending, None, None)
            self.pending = None
        return self.now


class LongMixer:
    """A hyper-connection: out of the sublayer before, into the next."""

    def __init__(
        self,
        base: torch.Tensor,
        scale: torch.Tensor,
        norm: torch.Tensor,
        eps: float,
        rms_eps: float,
        iterations: int,
    ):
        self._given = (base, scale, norm)
        self._eps, self._rms_eps, self._iterations = eps, rms_eps, iterations

    def enter(
        self, streams: LongStreams, fn: torch.Tensor, memory: LongMemory
    ) -> tuple[HalfRows, torch.Tensor]:
        """fn [24, 4 · hidden] → the sublayer's input, normed, and its mix [rows, 24]"""
        rows, _, hidden = streams.now.shape
        fn = fn.float() if fn.dtype == torch.bfloat16 else fn
        y, before = streams.pending or (None, None)
        streams.pending = None
        partial = memory.take("partial mix", *partial_sums(rows, hidden, fn.dtype))
        leave_and_mix(streams.now, y, before, fn, partial)
        base, scale, norm = self._given
        x, mix = memory.halves("sublayer input", rows, hidden, 2), memory.take("mix", rows, MIX)
        collapse(streams.now, partial, base, scale, mix, norm, x, self._rms_eps, self._eps, self._iterations)
        return x, mix
