"""What a sequence keeps between steps, described for any architecture: series of rows, addressed by position.

Nothing else is stored about a sequence than these rows and its position, from which follows which of them are live.
So rewinding is arithmetic, and a snapshot is the live rows by name.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[Any]  # [rows, width], of a numpy type in DTYPES

# How rows are stored.  numpy has no bfloat16: its bits are kept as 16-bit words.
DTYPES: Final[dict[str, np.dtype[Any]]] = {
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(np.uint16),
    "f32": np.dtype(np.float32),
}
KV_DTYPES: Final = tuple(DTYPES)
DRAFTS: Final = 8  # of one sequence in a step, at most: rings have places for them that need not count


@dataclass(frozen=True, slots=True)
class Series:
    """Rows of one kind, in order.  Row r belongs to positions [r · ratio, (r + 1) · ratio).

    reach  of a ring: how many rows before the newest a step looks at; None: every row is kept
    lag    how many tokens must have followed before a row can be made
    """

    name: str  # unique in a layout, and the name in snapshots
    width: int
    dtype: str
    ratio: int = 1
    reach: int | None = None
    lag: int = 0

    @property
    def itemsize(self) -> int:
        return DTYPES[self.dtype].itemsize

    def live(self, position: int, floor: int) -> tuple[int, int]:
        """First and last row that count at `position` when it may go back to `floor`."""
        end = max(0, position - self.lag) // self.ratio
        if self.reach is None:
            return 0, end
        return max(0, end - self.reach - (position - floor)), end


@dataclass(frozen=True, slots=True)
class StateLayout:
    """All series of a sequence.  Two states with equal layouts can be copied into each other."""

    series: tuple[Series, ...]
    context: int  # most tokens
    max_rewind: int  # tokens that can always be taken back
    kv_dtype: str
    vocab_size: int

    def capacity(self, series: Series) -> int:
        """Rows that a series has room for.  A ring has spare places for rewinding, and for the token under way and
        drafts after it, which must not replace rows that still count: the step may fail, and drafts may be wrong."""
        if series.reach is None:
            return self.context // series.ratio
        return series.reach + self.max_rewind + 1 + DRAFTS

    def live_bytes(self, position: int) -> int:
        """Memory of a sequence that has read so many tokens: whole rings, and the rows written so far."""
        return sum(
            series.width
            * series.itemsize
            * (position // series.ratio if series.reach is None else self.capacity(series))
            for series in self.series
        )


class StateMemory(ABC):
    """Memory for sequences, in this process or elsewhere.  A slot holds all series of one sequence; `allocate` gives
    its number.

    Of what a step writes, rows that could replace others which still count are staged: they become part of the state
    with `commit`, or are forgotten with `discard`.
    """

    layout: StateLayout

    @abstractmethod
    def allocate(self) -> int:
        """A slot for a new sequence; numbers are not used again."""

    @abstractmethod
    def free(self, slot: int) -> None: ...

    @abstractmethod
    def copy(self, source: int, target: int, position: int) -> None:
        """The state of a sequence at `position` to another slot."""

    @abstractmethod
    def commit(self, slot: int, position: int) -> None:
        """Of what the step staged, rows before `position` become part of the state."""

    @abstractmethod
    def discard(self, slot: int) -> None:
        """The step failed: the state is as it was."""

    @abstractmethod
    def tensors(self, slot: int, position: int, floor: int) -> dict[str, Rows]:
        """The live rows by name."""

    @abstractmethod
    def restore(self, slot: int, position: int, floor: int, tensors: Mapping[str, Rows]) -> None:
        """The reverse of `tensors`."""

    def lost(self, slot: int) -> bool:
        """Whether what the slot held is gone: see `RemoteStates`."""
        del slot
        return False


class RemoteStates(StateMemory):
    """What a slot holds can be lost, as with a machine that is away: the sequence has to be fed again then, from
    `reset` on."""

    @abstractmethod
    def lost(self, slot: int) -> bool: ...

    @abstractmethod
    def lose(self, slot: int) -> None:
        """A step failed that was committed already: the slot is lost."""

    @abstractmethod
    def reset(self, slot: int) -> None:
        """A lost slot is as new."""


class StatePool(StateMemory):
    """Memory of a device.  A step writes to slots through the backend's own ops."""

    @abstractmethod
    def read(self, slot: int, series: int, first: int, last: int) -> Rows:
        """Rows [first, last) of a series, by its number in the layout.  Of a ring they are a copy; those that only
        grow may be a view, good until the sequence is rewound."""

    @abstractmethod
    def write(self, slot: int, series: int, first: int, rows: Rows) -> None:
        """Rows from `first` on."""

    def tensors(self, slot: int, position: int, floor: int) -> dict[str, Rows]:
        return {
            series.name: self.read(slot, number, *series.live(position, floor))
            for number, series in enumerate(self.layout.series)
        }

    def restore(self, slot: int, position: int, floor: int, tensors: Mapping[str, Rows]) -> None:
        for number, series in enumerate(self.layout.series):
            self.write(slot, number, series.live(position, floor)[0], tensors[series.name])


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """One pass through the model, as data: tokens of several sequences, side by side as rows."""

    tokens: NDArray[np.int64]  # [rows]
    positions: NDArray[np.int64]  # [rows]
    slots: tuple[int, ...]  # [sequences]
    starts: tuple[int, ...]  # [sequences + 1]: rows of sequence i are [starts[i], starts[i + 1])
    logits: NDArray[np.int64]  # the rows whose logits are wanted, ascending
    source: Any = None  # tokens on the device [rows] that stand for those above, which nobody knows yet

    @property
    def rows(self) -> int:
        return len(self.tokens)

    @staticmethod
    def of(sequences: Sequence[tuple[int, int, Sequence[int], int]], source: Any = None) -> "Step":
        """From (slot, position of the first token, tokens, how many of the last rows want logits)."""
        tokens: list[int] = []
        positions: list[int] = []
        wanted: list[int] = []
        starts = [0]
        for _, position, ids, rows in sequences:
            tokens.extend(ids)
            positions.extend(range(position, position + len(ids)))
            starts.append(len(tokens))
            wanted.extend(range(len(tokens) - rows, len(tokens)))
        return Step(
            np.array(tokens, np.int64),
            np.array(positions, np.int64),
            tuple(slot for slot, _, _, _ in sequences),
            tuple(starts),
            np.array(wanted, np.int64),
            source,
        )
