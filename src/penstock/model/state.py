"""What a layer needs to remember of a sequence.  The `kv` room implements it; the model only uses it.

Everything is addressed by absolute position, so how many rows are live follows from the position alone.
"""

from typing import Protocol

from torch import Tensor

from penstock.kernels.parts import AllRows, RecentRows


class StagedRows(RecentRows, Protocol):
    def stage(self, position: int, rows: Tensor) -> None:
        """Remember rows for `position` onwards once the step has succeeded."""
        ...


class CompressorState(Protocol):
    @property
    def frontier(self) -> RecentRows:
        """Projected values and scores of recent tokens, float32 [value | score]."""
        ...

    @property
    def rows(self) -> AllRows:
        """Finished compressed rows: row w covers positions [w · ratio, (w + 1) · ratio)."""
        ...


class LayerState(Protocol):
    @property
    def window(self) -> RecentRows:
        """Raw shared key/value rows."""
        ...

    @property
    def compressor(self) -> CompressorState | None: ...

    @property
    def indexer(self) -> CompressorState | None: ...


class DraftState(Protocol):
    """State of the MTP block: its window, and the trunk streams it still has to be paired with."""

    @property
    def layer(self) -> LayerState: ...

    @property
    def streams(self) -> StagedRows: ...


class SequenceState(Protocol):
    @property
    def position(self) -> int:
        """Tokens already processed; the next token has this position."""
        ...

    def layer(self, number: int) -> LayerState: ...

    @property
    def draft(self) -> DraftState | None: ...
