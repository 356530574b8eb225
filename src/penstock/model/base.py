"""What an engine asks of a model, whatever its architecture."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Self

import numpy as np
from numpy.typing import NDArray

from penstock.backend.base import Array, Backend, Logits, Vector
from penstock.backend.state import StateLayout, StatePool, Step
from penstock.storage.dense import DenseWeights
from penstock.storage.store import ExpertStore
from penstock.weights.checkpoint import Checkpoint
from penstock.weights.config import ModelConfig


class Architecture(ABC):
    """A model, or a slice of its layers with or without embedding and head."""

    # ── before anything is loaded ─────────────────────────────────────────────────────────────────────────

    @staticmethod
    @abstractmethod
    def state_layout(
        checkpoint: Checkpoint, *, kv_dtype: str, context: int, max_rewind: int, layers: range | None = None
    ) -> StateLayout:
        """What a sequence keeps for these layers (None: for all, and for the draft block if there is one)."""

    @staticmethod
    @abstractmethod
    def step_bytes(checkpoint: Checkpoint, backend: Backend, rows: int) -> int:
        """Working memory of a step with so many rows."""

    @staticmethod
    @abstractmethod
    def boundary(config: ModelConfig) -> tuple[int, ...]:
        """The shape of what one slice hands to the next for each row, in float32."""

    @classmethod
    @abstractmethod
    def build(
        cls,
        checkpoint: Checkpoint,
        backend: Backend,
        pool: StatePool,
        experts: ExpertStore,
        dense: DenseWeights,
        *,
        layers: range | None = None,
        prefetch: bool = False,
    ) -> Self:
        """The model on a backend.  Its weights are usable once `dense` has loaded them."""

    @staticmethod
    @abstractmethod
    def routed_experts(checkpoint: Checkpoint, backend: Backend, numbers: range) -> "RoutedExperts":
        """Routed experts with these numbers alone, of every block, for somebody who has the rest."""

    # ── steps ─────────────────────────────────────────────────────────────────────────────────────────────

    @abstractmethod
    def forward(
        self,
        step: Step,
        hidden: NDArray[np.float32] | None = None,
        progress: Callable[[float], None] | None = None,
    ) -> Array:
        """Runs the layers.  hidden: what the slice before this one returned, on the host [rows, *boundary]; the first
        slice embeds tokens instead.
        What sequences must keep is staged in their slots.  progress: told after each layer what share of them is
        done; what it raises ends the step there."""

    @abstractmethod
    def logits(self, hidden: Array, step: Step) -> Logits:
        """Of the rows that the step wants: [rows, vocab]"""

    @abstractmethod
    def draft_logits(self, slot: int, position: int, token: int) -> Logits:
        """What the draft block expects after `token`, which is about to follow a sequence at `position` → [vocab]"""

    @abstractmethod
    def draft(self, slot: int, position: int, token: int, most: int, least: float) -> list[tuple[int, float]]:
        """What the draft block guesses to follow `token`, each with its chance.  It ends where all of them
        together are less likely than `least`."""

    @abstractmethod
    def draft_knows(self, slot: int, position: int) -> bool:
        """Whether the draft block has followed a sequence as far back as it looks."""

    @abstractmethod
    def keep_up(self, wanted: bool) -> None:
        """Whether the draft block follows all steps, as it does until told.  Of single tokens that it did not follow
        it knows nothing when it guesses again."""

    @abstractmethod
    def settle(self, slot: int | None = None) -> None:
        """Makes rows that steps left for later: before a sequence's state is read, or (None) the weights leave."""

    @abstractmethod
    def announce(self, tokens: NDArray[np.int64]) -> None:
        """These tokens come next; some layers know by them what to read."""


class RoutedExperts(ABC):
    """Routed experts of a model's blocks, without anything around them."""

    @abstractmethod
    def terms(self, block: str, x: Vector, ids: NDArray[np.int64], weights: Vector) -> Vector:
        """What each expert gives for the rows that chose it, one after another by row and slot: x [rows, hidden], ids
        and weights [rows, slots] → [terms, hidden].  The number of experts as an id leaves a term out."""
