"""Where a sequence stands, and what follows from it.

How many rows are live follows from the position alone, which is what makes rewinding a matter of arithmetic: a
position is enough to know which rows count.  Recent rows sit in rings with `max_rewind` spare places.
"""

import weakref
from collections.abc import Mapping

from penstock.backend.state import Rows, StateLayout, StateMemory
from penstock.errors import ContextLengthError, RewindError


class SequenceState:
    """The state of one sequence, in a slot of a pool.  `floor` is the lowest position that can still be returned to
    (besides 0).  The slot is free again when nobody holds the state any more."""

    def __init__(self, pool: StateMemory):
        self.pool, self.layout = pool, pool.layout
        self.slot = pool.allocate()
        self.position = 0
        self.floor = 0
        weakref.finalize(self, pool.free, self.slot).atexit = False

    def check_room(self, count: int) -> None:
        if self.position + count > self.layout.context:
            raise ContextLengthError(
                f"{count:,} tokens after {self.position:,} do not fit the context of {self.layout.context:,}"
            )

    def advance(self, count: int, left_out: int = 0) -> None:
        """`count` tokens of a step have become part of the state, and its last `left_out` have not."""
        self.position += count
        self.floor = max(self.floor, self.position - self.layout.max_rewind)
        if count + left_out > self.layout.max_rewind + 2:
            # Of so many rows a ring keeps the last ones, those that were left out among them.
            self.floor = max(self.floor, self.position + left_out - self.layout.max_rewind - 1)

    def rewind(self, count: int) -> None:
        """Forgets the last `count` tokens."""
        target = self.position - count
        if count < 0 or target < 0:
            raise RewindError(f"cannot rewind {count:,} tokens at position {self.position:,}")
        if target < self.floor and target != 0:
            raise RewindError(
                f"cannot rewind {count:,} tokens: positions before {self.floor:,} are no longer remembered "
                f"(max_rewind is {self.layout.max_rewind})"
            )
        self.position = target
        if target == 0:
            self.floor = 0

    def fork(self) -> "SequenceState":
        """An independent copy."""
        copy = SequenceState(self.pool)
        copy.position, copy.floor = self.position, self.floor
        self.pool.copy(self.slot, copy.slot, self.position)
        return copy

    # ── as named rows, for snapshots and comparison ───────────────────────────────────────────────────────

    def tensors(self) -> dict[str, Rows]:
        """The live rows by name, in order of position.  Those that only grow are not copied: they are good until the
        state is rewound."""
        return self.pool.tensors(self.slot, self.position, self.floor)

    def restore(self, tensors: Mapping[str, Rows]) -> None:
        """The reverse of `tensors`, for a new state whose position and floor have been set."""
        self.pool.restore(self.slot, self.position, self.floor, tensors)
        self.floor = max(self.floor, self.position - self.layout.max_rewind)


def live_shapes(layout: StateLayout, position: int, floor: int) -> dict[str, tuple[int, int]]:
    """Shapes of `SequenceState.tensors` at this position and floor."""
    found = {}
    for series in layout.series:
        first, last = series.live(position, floor)
        found[series.name] = (last - first, series.width)
    return found
