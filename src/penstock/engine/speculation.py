"""Drafts that are checked in one step: several tokens for little more than one costs, where they are right.

A step reads the next token and some drafts after it; each row of logits says what really follows.  Tokens are drawn
from these rows one after another exactly as without drafts, from the same random numbers, with the same penalties and
grammar, for as long as the token drawn is the draft that the next row was computed for.  So text and probabilities
are the same token for token, whoever drafts: a draft that is wrong is never used, and leaves no trace in the session.

Where drafts do not pay, a step costs what it costs without them.  A drafter that takes time is closed: nothing is
asked of it until it is tried again for a few steps (`draft_record.py`).  An answer for which nobody has had a draft
for a while rests: of the next few steps nobody takes notice.
"""

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from penstock.engine.draft_record import TRIED, Record
from penstock.engine.drafters import Draft, Drafter, DSparkDrafter, MtpDrafter, NgramDrafter
from penstock.engine.gate import Chances, StepCosts, best_depth
from penstock.engine.session import Session
from penstock.engine.step_watch import Spent
from penstock.engine.steps import Generation, Step

RESTS: Final = ((64, 7), (16, 3))  # steps without a draft, and how many steps an answer then rests
BEGINS: Final = 72  # steps without a draft that an answer inherits at most from the one before it
ANCHORED: Final = 24  # steps with drafts in a row, then some without: what these cost must be known
ANCHORS: Final = 2  # of which the last one counts: after others a step finds less at hand than after its like
DEEPER: Final = 12  # steps with drafts, then one with one more than seems best: things change


class Speculation:
    """What an engine has learned about drafts: whose are right how often, and what they cost."""

    def __init__(self, drafters: Sequence[str], fresh: int = 0):
        """fresh: so many first steps of a width say nothing of what it costs, as where a device records them"""
        self.records = {name: Record(name) for name in drafters}
        self.costs, self.chances = StepCosts(), Chances()
        self._fresh, self._widths = fresh, Counter[int]()
        self._overlaps = False  # steps without drafts begin while the ones before them are under way
        self.in_a_row = 0  # steps with drafts
        self.after_drafts = False  # the latest step had some
        self.anchors = 0  # steps without drafts that are left, to know what these cost
        self.in_vain = 0  # looks without a draft, of the answer that was looked at last
        self.steps = self.drafting_steps = self.explored = self.tokens = 0
        # Of all steps with drafting, and what their tokens would have taken.
        self.seconds = self.plain_seconds = 0.0
        self.drafting = 0.0  # seconds spent on drafts for the step to come
        # Of a trial: code and memory are not at hand yet, so that it says little about costs.
        self.is_first = False

    def begin(self, generation: Generation | None = None) -> "Speculator":
        """For an answer; one without a generation never ends."""
        for record in self.records.values():
            record.begin_answer()
        makers: dict[str, type[Drafter]] = {
            "ngram": NgramDrafter,
            "mtp": MtpDrafter,
            "dspark": DSparkDrafter,
        }
        drafters = [(makers[name](), record) for name, record in self.records.items()]
        return Speculator(self, drafters, generation)

    def told(self, sequences: int, rows: int, tokens: int, spent: Spent, begun: bool = False) -> None:
        """A step of nothing but answers: how many, its rows, and the tokens that came of it.  begun: it had begun
        before its tokens were known"""
        self._overlaps |= begun
        self._widths[rows] += 1
        # Without drafts a step begins early.  The first one after drafts does not, and takes longer than the others.
        alone = rows == sequences and (not begun if self._overlaps else self.after_drafts)
        if not (self.is_first or alone or self._widths[rows] <= self._fresh):
            self.costs.told(rows, *spent)
        self.is_first = False
        self.steps += 1
        self.tokens += tokens
        self.seconds += spent.seconds + self.drafting
        self.drafting = 0.0
        if rows > sequences:
            self.plain_seconds += tokens / sequences * self.costs.at(sequences)
            self.in_a_row += 1
            self.drafting_steps += 1
            self.after_drafts = True
        else:
            self.plain_seconds += min(spent.seconds, self.costs.at(rows)) if alone else spent.seconds
            self.in_a_row = 0
            self.after_drafts = False

    def rested(self, steps: int) -> None:
        """Steps of which nobody took notice."""
        seconds = steps * self.costs.at(1)
        self.steps += steps
        self.tokens += steps
        self.seconds += seconds
        self.plain_seconds += seconds

    def stats(self) -> dict[str, Any]:
        costs = self.costs
        return {
            "drafters": list(self.records),
            "steps": self.steps,
            "steps_with_drafts": self.drafting_steps,
            "steps_to_explore": self.explored,
            "tokens": self.tokens,
            "drafted": {name: list(each.drafted) for name, each in self.records.items()},
            "accepted": {name: list(each.accepted) for name, each in self.records.items()},
            "gain": self.plain_seconds / self.seconds if self.seconds else 1.0,
            "saved_seconds": self.plain_seconds - self.seconds,
            "step_seconds": costs.at(1),
            "row_seconds": costs.at(2) - costs.at(1),
            "row_fetched_bytes": costs.fetch.bytes_at(2) - costs.fetch.bytes_at(1),
            "draft_seconds": {name: each.costs.at(1) for name, each in self.records.items()},
        }


class Speculator:
    """One answer's drafts.

    awake   what the next step takes and gives is wanted here (`told`, `judged`)
    eager   there will probably be drafts for the step after it, so that it should not begin before its token is known
    """

    def __init__(
        self, shared: Speculation, drafters: Sequence[tuple[Drafter, Record]], generation: Generation | None
    ):
        self._shared, self._drafters, self._generation = shared, drafters, generation
        # What was asked for, and rows of the step without it.
        self._pending: tuple[Drafter, Record, list[Draft], int] | None = None
        self.awake, self.eager = True, False
        self._rest = self._rested = 0  # steps to rest, and how many of these there were
        self._in_vain = min(shared.in_vain, BEGINS)  # looks without a draft, since the last one
        self._known = 0  # tokens that the drafters know

    @property
    def rests(self) -> bool:
        """Whether nothing will be proposed for the next step."""
        return self._rested < self._rest

    def propose(self, session: Session, token: int, rows: int, begun: bool = False) -> list[int]:
        """Drafts after `token`, which is certain and which the session has not read yet, that are worth a place in a
        step which has so many rows without them.  begun: it has begun without drafts, and there can be none"""
        self.awake, self.eager = not self.rests, False
        if not self.awake:
            self._rested += 1
            return []
        tokens = [*session.tokens_from(self._known), token]
        self._known += len(tokens)
        for drafter, record in self._drafters:
            drafter.push(tokens)
            record.idle += 1 + self._rested
            if record.warms_up:
                self._keep_up(session, drafter, record, True)
        self._shared.rested(self._rested)
        found = self._found(session, token, rows, begun)
        self._in_vain = 0 if found or (begun and self.eager) else self._in_vain + 1
        self._shared.in_vain = self._in_vain
        self._rested = 0
        self._rest = next((steps for vain, steps in RESTS if self._in_vain > vain), 0)
        return found

    def _found(self, session: Session, token: int, rows: int, begun: bool) -> list[int]:
        shared = self._shared
        if shared.in_a_row >= ANCHORED:
            shared.in_a_row, shared.anchors = 0, ANCHORS
        if shared.anchors:
            shared.anchors -= 1
            return []
        best: tuple[float, Drafter, Record, list[Draft], int] | None = None
        deeper = shared.in_a_row % DEEPER == DEEPER - 1
        for drafter, record in self._drafters:
            drafts: list[Draft] = []
            if drafter.free:
                drafts = self._before_the_end(drafter.propose(session, token, record.most, 0.0))
                if not drafts:
                    continue
            if begun and (record.due or record.trying):
                self.eager = True
                return []
            if record.due:
                record.begin_trial()
                shared.is_first = True
            if record.trying:
                drafts = self._tried(drafter, drafts, record, session, token, rows)
                return self._taken(drafter, record, drafts, rows)
            if (record.open or drafter.free) and (room := self._room(session, rows)) > 0:
                chances = self._chances(record, drafts, min(record.most, room))
                depth, gain = best_depth(chances, rows, shared.costs, record.costs)
                if record.open != bool(depth):
                    self._turn(session, drafter, record, bool(depth))
                if depth and (best is None or gain > best[0]):
                    if deeper:
                        depth = min(depth + 1, len(chances))
                    best = (gain, drafter, record, drafts, depth)
        self.eager = best is not None
        if best is None or begun:
            return []
        gain, drafter, record, drafts, depth = best
        if not drafter.free:
            drafts = self._ask(drafter, record, session, token, rows, depth, gain, deeper)
        return self._taken(drafter, record, drafts[:depth], rows)

    def _taken(self, drafter: Drafter, record: Record, drafts: list[Draft], rows: int) -> list[int]:
        record.idle, self.eager = 0, bool(drafts) or not drafter.free
        self._pending = (drafter, record, drafts, rows) if self.eager else None
        return [draft.token for draft in drafts]

    def _room(self, session: Session, rows: int) -> int:
        """Drafts that a step could have, of which somebody would hear."""
        room = session.engine.stepper.draft_room(rows, session.position + 1)
        return room if self._generation is None else min(room, self._generation.remaining - 1)

    def _before_the_end(self, drafts: list[Draft]) -> list[Draft]:
        """Without the token that ends the answer, which the row before it gives, and what would come behind it."""
        ends = self._generation.ends if self._generation is not None else ()
        end = next((place for place, draft in enumerate(drafts) if draft.token in ends), len(drafts))
        return drafts[:end]

    def _turn(self, session: Session, drafter: Drafter, record: Record, is_open: bool) -> None:
        self._keep_up(session, drafter, record, record.turn(is_open))

    def _keep_up(self, session: Session, drafter: Drafter, record: Record, wanted: bool) -> None:
        record.keeps_up = wanted
        drafter.keep_up(session, wanted)

    def _tried(
        self, drafter: Drafter, drafts: list[Draft], record: Record, session: Session, token: int, rows: int
    ) -> list[Draft]:
        """A single draft tells whether it is worth more."""
        if self._room(session, rows) < 1:
            return []
        self._shared.explored += 1
        if not drafter.free:
            # What has waited since the last time is not this draft's cost.
            session.engine.loader.settle(session.state.slot)
            drafts = self._timed(drafter, record, session, token, 1, 0.0)
            if not drafts:  # it had nothing to say, which is an answer too
                record.trying -= 1
                if not record.trying:
                    self._turn(session, drafter, record, False)
        return drafts[:1]

    def _ask(
        self,
        drafter: Drafter,
        record: Record,
        session: Session,
        token: int,
        rows: int,
        depth: int,
        gain: float,
        all_of_them: bool,
    ) -> list[Draft]:
        """Drafts that cost time; unless all of them are wanted, those that turn out to be unlikely are left out."""
        costs, making = self._shared.costs, record.costs
        # What one more takes, and what a token takes as things are.
        more = costs.at(rows + 1) - costs.at(rows) + making.at(2) - making.at(1)
        each = costs.at(rows) / rows / gain
        least = min(1.0, more / each) if each and not all_of_them else 0.0
        drafts = self._before_the_end(self._timed(drafter, record, session, token, depth, least))
        if all_of_them:
            return drafts
        # What they cost is spent by now.
        return drafts[: best_depth(self._chances(record, drafts, len(drafts)), rows, costs)[0]]

    def _timed(
        self, drafter: Drafter, record: Record, session: Session, token: int, most: int, least: float
    ) -> list[Draft]:
        begin = time.perf_counter()
        drafts = drafter.propose(session, token, most, least)
        seconds = time.perf_counter() - begin + session.engine.stepper.draft_seconds
        record.took(len(drafts), seconds)
        record.spent = seconds
        self._shared.drafting += seconds
        return drafts

    def _chances(self, record: Record, drafts: Sequence[Draft], most: int) -> list[float]:
        sure = [draft.sure for draft in drafts[:most]] or [-1] * most
        return [self._shared.chances.of(record.name, place, each) for place, each in enumerate(sure)]

    def judged(self, session: Session, tokens: Sequence[int]) -> tuple[int, int]:
        """What the step really gave: drafts that were right, and the token after them.  Says how many drafts there
        were, and how many of them were right."""
        if self._pending is None:
            return 0, 0
        (drafter, record, drafts, rows), self._pending, accepted = self._pending, None, 0
        for place, draft in enumerate(drafts):
            record.drafted[place] += 1
            if place < len(tokens):  # those after a wrong one were never looked at
                right = draft.token == tokens[place]
                self._shared.chances.told(record.name, place, draft.sure, right)
                record.accepted[place] += right
                accepted += right
        if record.trying and drafts:
            record.trying = max(0, record.trying - (1 if accepted else TRIED // 2))
            record.right += bool(accepted)
            record.in_vain = 0 if accepted else record.in_vain
            if not record.trying:
                self._end_trial(session, drafter, record)
        elif record.open and not drafter.free:
            costs = self._shared.costs
            plain = costs.at(rows)
            saved = accepted * plain / rows - (costs.at(rows + len(drafts)) - plain) - record.spent
            if not record.saved(saved):
                self._turn(session, drafter, record, False)
        return len(drafts), accepted

    def _end_trial(self, session: Session, drafter: Drafter, record: Record) -> None:
        shared = self._shared
        if record.right == TRIED:  # what was known says something else, and is of another text
            shared.chances.begin_anew(record.name, TRIED)
        depth, gain = best_depth(self._chances(record, [], record.most), 1, shared.costs, record.costs)
        record.worth = (gain - 1) * shared.costs.at(1)
        # Of what was right earlier nothing follows where nothing is right now.
        self._turn(session, drafter, record, bool(depth and record.right))


def verify(
    generation: Generation, ids: Sequence[int], logits: NDArray[np.float32], position: int
) -> Iterator[Step]:
    """The tokens that follow: one for ids[0], which is certain, and one for every draft that was right.

    ids: what the step read, from `position` on; logits [len(ids), vocab]
    """
    rows = list(logits)
    generation.start(*rows)
    try:
        for place, row in enumerate(rows):
            step = generation.next(row, position + place + 1)
            yield step
            if step.finish_reason is not None or ids[place + 1 : place + 2] != [step.token]:
                return
    finally:
        generation.sampler.drop()
