"""The multi-token-prediction block: from the trunk's last streams and the next token, the token after it.

Pair i joins the trunk's streams of position i with token i + 1.  The block's own window must hold every recent pair
before it can predict.  A prompt's pairs are added as the trunk goes along.  Those of a decoded token would take as
long as a good part of a small layer, for nothing where nobody drafts: on a backend that can, they wait, and are
added all at once when somebody does or when they have become many.  Where it is known that nobody will draft for a
while, they are left out altogether; the window then begins anew where the block follows again.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from penstock.backend import deepseek_v4 as v4
from penstock.backend.base import Array, DeviceWeight
from penstock.backend.state import DRAFTS, StateLayout, Step
from penstock.model.deepseek_v4.description import Description
from penstock.model.deepseek_v4.state import DRAFT

if TYPE_CHECKING:
    from penstock.model.deepseek_v4.model import Layer

FEW: Final = 1 + DRAFTS  # rows of a step whose pairs may wait
MOST: Final = 64  # pairs that wait
SEQUENCES: Final = 256  # that have pairs waiting; of others a few rows of the window are missing


class Waiting:
    """The pairs of one sequence that its window lacks: from `first` on, with the tokens that complete them.  The
    streams of the position after them are kept too.  Of pairs before `since` some may be missing for good."""

    __slots__ = ("first", "since", "tokens")

    def __init__(self, first: int, since: int):
        self.first, self.since, self.tokens = first, since, list[int]()

    @property
    def end(self) -> int:
        return self.first + len(self.tokens)

    def cut(self, end: int) -> None:
        """Pairs from `end` on were never read, or are no more."""
        self.first, self.since = min(self.first, end), min(self.since, end)
        del self.tokens[max(0, end - self.first) :]


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
        self._late = ops if isinstance(ops, v4.LateDraftOps) else None
        parts = v4.DraftParts(
            *(embedding, self.join, layer.attention_hyper, layer.attention),
            *(layer.experts_hyper, layer.router, layer.experts, self.head),
        )
        self._guesser = None if self._late is None else self._late.guesser(parts)
        self._blocks = range(block, block + 1)
        self._streams = next(n for n, each in enumerate(layout.series) if each.name == f"{DRAFT}.streams")
        spare = layout.capacity(layout.series[self._streams]) - FEW  # positions whose streams are still there
        self._most = min(MOST, spare) if self._late else 0
        self._few = min(FEW, self._most)
        self._waiting: dict[int, Waiting] = {}  # by slot
        self.keeps_up = True  # see `Architecture.keep_up`

    def follow(self, streams: Array, step: Step, batch: Any) -> None:
        """Adds the pairs that a step completes: (last streams before it, its first token), and so on."""
        if step.rows <= FEW and not self.keeps_up:
            return
        if step.rows <= self._few:
            self._wait(step)
        else:
            for number, slot in enumerate(step.slots):
                start, stop = step.starts[number], step.starts[number + 1]
                position = int(step.positions[start])
                self._catch_up(slot, position)
                since = self._waiting_at(slot, position).since
                self._waiting[slot] = Waiting(position + stop - start - 1, since)
            pairs = _pairs(step)
            if pairs.rows:
                before = self.ops.previous_streams(self._streams, streams, batch)
                own = self.ops.begin(pairs, self._blocks)
                self.layer.fill_window(self.join.run(before, self.embedding.run(own)), own)
        self.ops.keep_streams(self._streams, streams, batch)

    def _wait(self, step: Step) -> None:
        positions, tokens = step.positions.tolist(), step.tokens.tolist()
        for number, slot in enumerate(step.slots):
            start, stop = step.starts[number], step.starts[number + 1]
            position = positions[start]
            waiting = self._waiting_at(slot, position)
            if len(waiting.tokens) + stop - start > self._most:
                self.settle(slot)
            # A sequence's very first token completes no pair, nor does one whose predecessor was not followed.
            skip = waiting.end - (position - 1)
            waiting.tokens += tokens[start + skip : stop]

    def _waiting_at(self, slot: int, position: int) -> Waiting:
        """The pairs that wait, of a sequence that has read `position` tokens."""
        waiting = self._waiting.get(slot)
        if waiting is not None and position <= waiting.end + 1:
            waiting.cut(max(0, position - 1))
            return waiting
        # Never seen, or there were steps that were not followed: the streams before this one are gone.
        first = position if waiting is not None else max(0, position - 1)
        waiting = self._waiting[slot] = Waiting(first, first)
        if len(self._waiting) > SEQUENCES:
            del self._waiting[next(iter(self._waiting))]
        return waiting

    def _catch_up(self, slot: int, position: int) -> None:
        """The window gets the pairs that wait, of a sequence that has read `position` tokens."""
        if slot in self._waiting:
            self._waiting_at(slot, position)
            self.settle(slot)

    def knows(self, slot: int, position: int) -> bool:
        """Whether the window lacks nothing for a guess of a sequence that has read `position` tokens."""
        waiting = self._waiting.get(slot)
        if waiting is None or position > waiting.end + 1:
            return False
        return waiting.since <= max(0, position - self.config.window)

    def settle(self, slot: int | None = None) -> None:
        """The windows get the pairs that wait."""
        for each in list(self._waiting) if slot is None else [slot] if slot in self._waiting else []:
            waiting = self._waiting[each]
            if waiting.tokens and self._late is not None and self._late.holds(each):
                joined, batch = self._joined(each, waiting.first, waiting.tokens)
                self.layer.fill_window(joined, batch)
                waiting.first += len(waiting.tokens)
                waiting.tokens.clear()

    def _joined(self, slot: int, first: int, tokens: Sequence[int]) -> tuple[Array, Any]:
        step = Step.of([(slot, first, tokens, 0)])
        if self._late is None:  # nothing waits: there is one
            batch = self.ops.begin(step, self._blocks)
            streams = self.ops.kept_streams(self._streams, slot, first)
        else:
            batch = self._late.begin(step, self._blocks, settled=len(tokens) > 1)
            streams = self._late.kept_streams(self._streams, slot, first, len(tokens))
        return self.join.run(streams, self.embedding.run(batch)), batch

    def forward(self, slot: int, position: int, token: int) -> Array:
        """The block's output streams [1, n, hidden] for the newest pair.  Changes nothing that counts: the pair's own
        row goes to the window's next place, where the coming step will put it again."""
        first, tokens = self._newest(slot, position, token)
        joined, batch = self._joined(slot, first, tokens)
        streams = self.ops.repeat(batch, lambda _: self._through(joined, batch))
        return self._late.last(streams) if self._late is not None else streams

    def _newest(self, slot: int, position: int, token: int) -> tuple[int, list[int]]:
        """The newest pair, after those that wait: the position of the first, and the tokens that complete them."""
        first, tokens = position - 1, [token]
        if slot in self._waiting:
            waiting = self._waiting_at(slot, position)
            if len(waiting.tokens) > FEW:
                self.settle(slot)
            waiting.cut(first)
            if waiting.tokens:  # one way through the layer for all
                first, tokens = waiting.first, [*waiting.tokens, token]
                waiting.first += len(waiting.tokens)
                waiting.tokens.clear()
        return first, tokens

    def guesses(
        self, slot: int, position: int, token: int, most: int, least: float, output: DeviceWeight
    ) -> list[tuple[int, float]] | None:
        """At most so many in a row, each with how likely it is; None where they have to be made one by one."""
        table = None if self._guesser is None else self.layer.store.whole(self.layer.block)
        if self._late is None or self._guesser is None or table is None:
            return None
        first, tokens = self._newest(slot, position, token)
        streams = self._late.kept_streams(self._streams, slot, first, len(tokens))
        made = self._guesser.run(slot, first, streams, tokens, most, least, table, output)
        self.layer.store.used(self.layer.block, made.ids)
        return made.found

    def again(self, slot: int, position: int, token: int, streams: Array) -> Array:
        """The same for a guess of the block itself, whose own streams stand for the trunk's."""
        batch = self.ops.begin(Step.of([(slot, position - 1, [token], 0)]), self._blocks)
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
