"""The multi-token-prediction block: from the trunk's last streams and the next token, the token after it.

Pair i joins the trunk's streams of position i with token i + 1.  The block's own window must hold every recent pair
before it can predict, so the pairs that a step completes are added as the trunk goes along.
"""

from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.backend import deepseek_v4 as v4
from penstock.backend.base import Array
from penstock.backend.state import StateLayout, Step
from penstock.model.deepseek_v4.description import Description
from penstock.model.deepseek_v4.state import DRAFT

if TYPE_CHECKING:
    from penstock.model.deepseek_v4.model import Layer


class DraftBlock:
    """block: its number among the ops' attention blocks."""

    def __init__(
        self,
        description: Description,
        ops: v4.Ops,
        layer: "Layer",
        embedding: v4.Embedding,
        layout: StateLayout,
        block: int,
    ):
        self.ops, self.layer, self.embedding, self.config = ops, layer, embedding, description.config
        self.join = ops.join(description.join(DRAFT))
        self.head = ops.head(description.head(f"{DRAFT}.hc_head", f"{DRAFT}.norm"))
        self._blocks = range(block, block + 1)
        self._streams = next(n for n, each in enumerate(layout.series) if each.name == f"{DRAFT}.streams")

    def follow(self, streams: Array, step: Step, batch: Any) -> None:
        """Adds the pairs that a step completes: (last streams before it, its first token), and so on."""
        pairs = _pairs(step)
        if pairs.rows:
            before = self.ops.previous_streams(self._streams, streams, batch)
            own = self.ops.begin(pairs, self._blocks)
            self.layer.fill_window(self.join.run(before, self.embedding.run(own)), own)
        self.ops.keep_streams(self._streams, streams, batch)

    def forward(self, slot: int, position: int, token: int) -> Array:
        """The block's output streams [1, n, hidden] for the newest pair.  Changes nothing that counts: the pair's own
        row goes to the window's next place, where the coming step will put it again."""
        step = Step.of([(slot, position - 1, [token], 0)])
        batch = self.ops.begin(step, self._blocks)
        streams = self.ops.kept_streams(self._streams, slot, position - 1)
        joined = self.join.run(streams, self.embedding.run(batch))
        return self.ops.repeat(batch, lambda _: self._through(joined, batch))

    def _through(self, streams: Array, batch: Any) -> Array:
        self.layer.forward(streams, batch)
        return streams


def _pairs(step: Step) -> Step:
    """Each token with the position before its own; a sequence's very first token completes no pair."""
    chosen = step.positions > 0
    slots, starts = [], [0]
    for number, slot in enumerate(step.slots):
        count = int(chosen[step.starts[number] : step.starts[number + 1]].sum())
        if count:
            slots.append(slot)
            starts.append(starts[-1] + count)
    none = np.empty(0, np.int64)
    # Where tokens are not known yet, each sequence has one, and none of them is its first.
    return Step(
        step.tokens[chosen], step.positions[chosen] - 1, tuple(slots), tuple(starts), none, step.source
    )
