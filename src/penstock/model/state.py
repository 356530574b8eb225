"""What the model needs to remember of a sequence.  The `kv` room implements it; the model only uses it.

Everything is addressed by absolute position, so how many rows are live follows from the position alone.
"""

from typing import Protocol

from torch import Tensor

from penstock.kernels.parts import LayerRows, RecentRows


class StagedRows(RecentRows, Protocol):
    def stage(self, position: int, rows: Tensor) -> None:
        """Remember rows for `position` onwards once the step has succeeded."""
        ...


class DraftState(Protocol):
    """State of the MTP block: its window, and the trunk streams it still has to be paired with."""

    @property
    def layer(self) -> LayerRows: ...

    @property
    def streams(self) -> StagedRows: ...


class SequenceState(Protocol):
    @property
    def position(self) -> int:
        """Tokens already processed; the next token has this position."""
        ...

    def layer(self, number: int) -> LayerRows: ...

    @property
    def draft(self) -> DraftState | None: ...
