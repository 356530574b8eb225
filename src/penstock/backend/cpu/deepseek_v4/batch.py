"""One step for the native code: tokens, rotations, and where every sequence's state lies."""

from typing import TYPE_CHECKING, Final

import numpy as np

from penstock.backend.cpu.memory import Buffer
from penstock.backend.cpu.states import CpuStates
from penstock.backend.state import Step
from penstock.native import structs

if TYPE_CHECKING:
    from penstock.backend.cpu.deepseek_v4.attention import CpuAttention

ROW_KINDS: Final = {"f32": 0, "f16": 1, "bf16": 2}  # as in rows.h


class SequenceStates:
    """All blocks' state of one sequence, described to the native code."""

    def __init__(self, slot: int, pool: CpuStates, blocks: "list[CpuAttention]"):
        layout, addresses = pool.layout, pool.slots[slot].addresses
        self.described = np.zeros(len(blocks), np.dtype(structs.SequenceState))
        self._rings = np.zeros((len(blocks), 3), np.dtype(structs.Ring))
        size = self.described.dtype.itemsize
        self.addresses = self.described.ctypes.data + size * np.arange(len(blocks), dtype=np.int64)

        def ring(block: int, place: int, series: int) -> int:
            """Describes a ring, and says where."""
            spec, own = layout.series[series], self._rings[block, place : place + 1]
            own[0] = (addresses[series], pool.capacities[series], spec.width, ROW_KINDS[spec.dtype])
            return int(own.ctypes.data)

        for number, block in enumerate(blocks):
            state, own = block.state, self.described[number]
            own["window"] = ring(number, 0, state.window)
            for place, name, frontier, rows in (
                (1, "compressed", state.frontier, state.rows),
                (2, "index", state.index_frontier, state.index_rows),
            ):
                if frontier is not None and rows is not None:
                    own[name]["frontier"] = ring(number, place, frontier)
                    own[name]["rows"] = addresses[rows]
                    own[name]["rows_kind"] = ROW_KINDS[layout.series[rows].dtype]


class Sequence:
    """One sequence's share of a step: rows [start, start + count), positions from `position` on.  since: see
    `Ops.begin`"""

    __slots__ = ("count", "position", "since", "slot", "start", "states")

    def __init__(
        self, slot: int, start: int, count: int, position: int, states: SequenceStates, since: int = 0
    ):
        self.slot, self.start, self.count, self.position, self.states = slot, start, count, position, states
        self.since = since

    def enter(self, blocks: slice, direct: bool) -> None:
        """Tells these blocks where the sequence stands, and whether its rows go to their rings at once."""
        own = self.states.described[blocks]
        own["start"], own["count"], own["position"] = self.start, self.count, self.position
        if direct:
            own["fresh"] = 0
            for compressor in ("compressed", "index"):
                own[compressor]["fresh"], own[compressor]["kept"] = 0, self.count


class Batch:
    """What the ops of a step share."""

    __slots__ = ("_pointers", "_pointers_at", "rotations", "rows", "sequences", "step", "tokens")

    def __init__(self, step: Step, sequences: list[Sequence], rotations: dict[int, tuple[Buffer, Buffer]]):
        self.step, self.rows, self.sequences = step, step.rows, sequences
        self.rotations = rotations  # by identity of the frequencies: cos and sin [rows, rope pairs]
        self.tokens = Buffer(step.tokens)
        # [blocks, sequences] addresses of ps_sequence_state
        self._pointers = np.stack([sequence.states.addresses for sequence in sequences], axis=1)
        self._pointers_at: int = self._pointers.ctypes.data

    def states(self, block: int) -> int:
        """Where the addresses of the sequences' states of a block are."""
        return self._pointers_at + 8 * block * len(self.sequences)
