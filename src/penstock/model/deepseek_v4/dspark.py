"""A DSpark module: from what the trunk's last layers made of the past and the next token, the five tokens after it.

Its stages are layers whose windows hold rows made from features of the trunk, a row for every token that was read; so
nothing of a guess is ever kept.  A block of the next token and four placeholders passes through all stages at once,
and every place of it sees all others.  Tokens are then chosen one after another, since each adds to the logits of the
next, and the module says of each how likely it is right.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from penstock.backend import deepseek_v4 as v4
from penstock.backend.base import Array, DeviceWeight
from penstock.backend.state import DRAFTS, Step
from penstock.model.deepseek_v4.description import Description

if TYPE_CHECKING:
    from penstock.model.deepseek_v4.model import Layer

BLOCK: Final = 5  # places, as many as it was trained with
PLACEHOLDER: Final = 128_799  # the token that stands for those which are to be guessed
SEQUENCES: Final = 256  # of which it is known what their windows hold
FEW: Final = 1 + DRAFTS  # rows of a step that it need not follow


class Followed:
    """The positions [first, end) of a sequence that its windows have rows of."""

    __slots__ = ("end", "first")

    def __init__(self, first: int, end: int):
        self.first, self.end = first, end


class DSparkModule:
    """first: the number of its first stage among the ops' attention blocks; layers: of the trunk that are here"""

    def __init__(
        self,
        description: Description,
        ops: v4.DSparkOps,
        stages: Sequence["Layer"],
        embedding: v4.Embedding,
        first: int,
        layers: int,
    ):
        self.ops, self.stages, self.embedding = ops, stages, embedding
        self.config, self.dense = description.config, description.dense
        last = stages[-1].block
        self.features = ops.features(description.features(stages[0].block))
        head = description.head(f"{last}.hc_head", f"{last}.norm")
        self.head = ops.markov_head(description.markov(last, head))
        self.watched = range(layers - description.watched(stages[0].block), layers)
        self._blocks = range(first, first + len(stages))
        self._followed: dict[int, Followed] = {}  # by slot
        self.keeps_up = True  # see `Architecture.keep_up`

    def see(self, layer: int, streams: Array, batch: Any) -> None:
        """What a layer of the trunk has made."""
        if layer in self.watched:
            self.features.take(layer - self.watched.start, streams, batch)

    def follow(self, step: Step, batch: Any) -> None:
        """The windows get the rows of a step, whose features have all been seen."""
        if step.rows <= FEW and not self.keeps_up:
            return
        self.ops.repeat(batch, lambda _: self._fill_windows(batch), blocks=self._blocks)
        for number, slot in enumerate(step.slots):
            start, stop = step.starts[number], step.starts[number + 1]
            position = int(step.positions[start])
            followed = self._at(slot, position)
            followed.end = position + stop - start

    def _fill_windows(self, batch: Any) -> None:
        x: Array = None
        for stage in self.stages:
            self.dense.enter(stage.block)
            if x is None:  # the projection is the first stage's
                x, batch = self.features.run(batch)
            stage.attention.fill_window(x, batch)
            self.dense.leave(stage.block)

    def _at(self, slot: int, position: int) -> Followed:
        """What is known of a sequence that has read `position` tokens."""
        followed = self._followed.get(slot)
        if followed is None:  # never seen: what was saved with it counts
            followed = self._followed[slot] = Followed(0, position)
            if len(self._followed) > SEQUENCES:
                del self._followed[next(iter(self._followed))]
        elif position > followed.end:  # steps that were not followed lie between
            followed.first = position
        followed.first, followed.end = min(followed.first, position), position
        return followed

    def draft(
        self, slot: int, position: int, token: int, most: int, least: float, output: Iterable[DeviceWeight]
    ) -> list[tuple[int, float]]:
        """See `Architecture.draft`.  output: as for `MarkovHead`"""
        tokens = [token] + [min(PLACEHOLDER, self.config.vocab_size - 1)] * (BLOCK - 1)
        since = self._at(slot, position).first
        batch = self.ops.begin(Step.of([(slot, position, tokens, 0)]), self._blocks, since=since)
        streams = self.ops.repeat(batch, lambda _: self._through(batch))
        found = self.head.run(streams, batch, most, least, output)
        self.dense.leave(self.stages[-1].block)
        return found

    def _through(self, batch: Any) -> Array:
        streams = self.ops.streams(self.embedding.run(batch), self.config.streams)
        for stage in self.stages:
            self.dense.enter(stage.block)
            stage.forward(streams, batch)
            if stage is not self.stages[-1]:  # whose the head is
                self.dense.leave(stage.block)
        return streams
