"""Which slots advance by which tokens in the next step.

A step takes one token of every slot that is decoding, with drafts after it where that pays, and a piece of the oldest
prompt that is not read yet.  While others decode, that piece is as large as can be read in the time that a step of
decoding takes, so that prefill of a long prompt at most halves their pace; when nobody decodes it is a whole chunk.

A prompt that is scored needs logits of every row, so its pieces are small, and they take turns with those of prompts
that are only read.
"""

from collections.abc import Collection, Sequence
from typing import Final

from penstock.engine.engine import Engine
from penstock.engine.pace import Pace
from penstock.engine.requests import Slot, UnderWay, Work
from penstock.engine.scoring import score_rows
from penstock.engine.step_watch import Spent

ENOUGH: Final = 256  # tokens that have to be read before their pace says something


class Batcher:
    """Chooses the work of steps, and learns from how long they took."""

    def __init__(self, engine: Engine):
        self._engine = engine
        self._pace, self._scoring_pace = Pace(), Pace()
        self._scored_last = False
        self._begun = False  # the latest step had, before its tokens were known
        self._read_tokens, self._read_seconds = 0, 0.0  # in steps that did nothing but read prompts

    def choose(
        self, slots: Collection[Slot], under_way: Collection[UnderWay], checkpoints: bool
    ) -> list[Work]:
        """checkpoints: whether a long prompt is to be kept on the way"""
        chunk, shares = self._engine.plan.chunk, self._engine.stepper.shares
        decoding = [slot for slot in slots if not slot.prefilling]
        free = [slot for slot in decoding if not slot.ahead]
        # Where several steps can be under way, each takes its share of those who decode.
        free = free[: min(chunk, -(-len(decoding) // shares))]
        self._begun = bool(free) and self._engine.stepper.has_begun([slot.session for slot in free])
        work = self._decoding(free)
        if self._begun:  # without those who have come since; they take part in the next one
            return work
        room = chunk - sum(len(part.ids) for part in work)
        scoring = self._scores_next(slots)
        if scoring:
            room = min(room, score_rows(self._engine))
        reading = [slot for slot in slots if slot.prefilling and slot.scoring == scoring]
        room = min(room, self._engine.stepper.piece(sum(slot.unread for slot in reading)))
        if decoding:
            room = (self._scoring_pace if scoring else self._pace).room(room)
        for slot in reading:
            if room > 0 and _follows(slot, work, under_way):
                cut = slot.next_cut(checkpoints) - slot.session.position
                ids = slot.pending[slot.ahead :][: min(room, cut)]
                slot.stops = len(ids) == cut
                work.append(Work(slot, ids, slot.ahead + len(ids) == len(slot.pending), scoring))
                room -= len(ids)
        return work

    def _decoding(self, slots: Sequence[Slot]) -> list[Work]:
        """The next token of each slot, and drafts after it where that pays."""
        work, rows, speculation = [], len(slots), self._engine.speculation
        for slot in slots:
            ids = list(slot.pending)
            if speculation is not None:
                if slot.speculator is None:
                    slot.speculator = speculation.begin(slot.generation)
                ids += slot.speculator.propose(slot.session, ids[-1], rows, self._begun)
                rows += len(ids) - 1
            work.append(Work(slot, ids, True, drafts=len(ids) > 1))
        return work

    def _scores_next(self, slots: Collection[Slot]) -> bool:
        """Whether prompts are scored in the next step, or only read: by turns, if there are both."""
        kinds = {slot.scoring for slot in slots if slot.prefilling}
        self._scored_last = not self._scored_last if len(kinds) == 2 else True in kinds
        return self._scored_last

    def took(self, work: Sequence[Work], spent: Spent) -> None:
        """What a step took."""
        seconds = spent.seconds
        read = sum(len(part.ids) for part in work if part.slot.prefilling)
        if read == 0:
            self._pace.decoded(seconds)
            self._scoring_pace.decoded(seconds)
            awake = any(part.slot.speculator is not None and part.slot.speculator.awake for part in work)
            if self._engine.speculation is not None and awake:
                tokens = sum(len(part.slot.verified) if part.drafts else 1 for part in work)
                rows = sum(len(part.ids) for part in work)
                self._engine.speculation.told(len(work), rows, tokens, spent, self._begun)
        elif all(part.slot.prefilling and not part.scores for part in work):
            self._read_tokens += read
            self._read_seconds += seconds
        elif any(not part.slot.prefilling for part in work):
            (self._scoring_pace if self._scored_last else self._pace).read(read, seconds)

    @property
    def prefill_per_second(self) -> float | None:
        """Tokens of prompts read in a second while nobody decodes; None before there was enough to tell."""
        enough = self._read_tokens >= min(ENOUGH, self._engine.plan.chunk)
        return self._read_tokens / self._read_seconds if enough and self._read_seconds else None


def _follows(slot: Slot, work: Sequence[Work], under_way: Collection[UnderWay]) -> bool:
    """Whether a slot's next piece may begin, though the one before may be under way still."""
    if not slot.ahead:
        return True
    own = [step for step in under_way if any(part.slot is slot for part in step.work)]
    committed = all(step.begun.committed for step in own)
    return committed and not slot.stops and not any(part.rows for part in work)
