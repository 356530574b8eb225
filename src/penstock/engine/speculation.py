"""Drafts that are checked in one step: several tokens for little more than one costs, where they are right.

A step reads the next token and some drafts after it; each row of logits says what really follows.  Tokens are drawn
from these rows one after another exactly as without drafts, from the same random numbers, with the same penalties and
grammar, for as long as the token drawn is the draft that the next row was computed for.  So text and probabilities
are the same token for token, whoever drafts: a draft that is wrong is never used, and leaves no trace in the session.
"""

import time
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.backend.state import DRAFTS
from penstock.engine.drafters import Draft, Drafter, MtpDrafter, NgramDrafter
from penstock.engine.gate import Chances, StepCosts, best_depth
from penstock.engine.session import Session
from penstock.engine.stepping import Stepper
from penstock.engine.steps import Generation, Step

MOST: Final = {"mtp": 4, "ngram": DRAFTS}  # drafts at a time
EXPLORED: Final = 64  # steps without a drafter after which it is tried all the same: things may have changed
LONGEST: Final = 1024  # likewise, after it was tried again and again: each time it waits for twice as long
UNKNOWN: Final = 3  # likewise, while little is known of it
RESTS: Final = 8  # steps for which a drafter that does not promise a gain is not even considered
ANCHORED: Final = 16  # steps with drafts in a row, then one without: what that costs must be known
SLOWLY: Final = 0.05  # share of a new duration in the one to expect


class Spent(NamedTuple):
    """What a step took.  fetched, waited: bytes of experts that had to come, and seconds of waiting for them."""

    seconds: float
    fetched: float = 0.0
    waited: float = 0.0


class StepWatch:
    """How long a step takes, from now on, and what it waits for."""

    def __init__(self, stepper: Stepper):
        self._stepper, self._waits, self._begin = stepper, stepper.waits, time.perf_counter()

    def spent(self, since: float = 0.0) -> Spent:
        """since: when the step before it was over, if that was later than this one's beginning"""
        seconds = time.perf_counter() - max(self._begin, since)
        fetched, waited = self._stepper.waits
        return Spent(seconds, max(0, fetched - self._waits[0]), max(0.0, waited - self._waits[1]))


class Tally:
    """Drafts of one drafter that were tried, by their place after the certain token, and those that were right."""

    def __init__(self, most: int) -> None:
        self.drafted, self.accepted = [0] * most, [0] * most


class Speculation:
    """What an engine has learned about drafts: whose are right how often, and what they cost."""

    def __init__(self, drafters: Sequence[str]):
        self.drafters = tuple(drafters)
        self.costs, self.chances = StepCosts(), Chances()
        self.draft_seconds = dict.fromkeys(drafters, 0.0)  # of one draft
        self.tallies = {name: Tally(MOST[name]) for name in drafters}
        self.idle = dict.fromkeys(drafters, 0)  # steps since a drafter was last tried
        self.trials = dict.fromkeys(drafters, 0)  # steps in which it was
        self.patience = dict.fromkeys(drafters, EXPLORED)
        self.in_a_row = 0  # steps with drafts
        self.steps = self.drafting_steps = self.explored = self.tokens = 0
        self.seconds = self.plain_seconds = (
            0.0  # of all steps with drafting; what their tokens would have taken
        )
        self._drafting = 0.0  # seconds spent on drafts for the step to come

    def begin(self, tokens: Sequence[int]) -> "Speculator":
        """An answer that continues these tokens."""
        makers: dict[str, type[Drafter]] = {"ngram": NgramDrafter, "mtp": MtpDrafter}
        return Speculator(self, [makers[name]() for name in self.drafters], tokens)

    def told(self, sequences: int, rows: int, tokens: int, spent: Spent) -> None:
        """A step of nothing but answers: how many, its rows, and the tokens that came of it."""
        self.costs.told(rows, *spent)
        self.steps += 1
        self.tokens += tokens
        self.seconds += spent.seconds + self._drafting
        self.plain_seconds += (
            tokens / sequences * self.costs.at(sequences) if rows > sequences else spent.seconds
        )
        self._drafting = 0.0
        self.in_a_row = self.in_a_row + 1 if rows > sequences else 0

    def asked(self, drafter: str, drafts: int, seconds: float) -> None:
        """A drafter took so long."""
        self._drafting += seconds
        known, each = self.draft_seconds[drafter], seconds / max(1, drafts)
        self.draft_seconds[drafter] = known + SLOWLY * (min(each, 3 * known) - known) if known else each

    def explores(self, drafter: str) -> bool:
        """Whether it is time to try a drafter that does not promise a gain."""
        if self.trials[drafter] <= UNKNOWN:
            return self.idle[drafter] >= UNKNOWN
        if self.idle[drafter] < self.patience[drafter]:
            return False
        self.patience[drafter] = min(2 * self.patience[drafter], LONGEST)
        return True

    def stats(self) -> dict[str, Any]:
        costs = self.costs
        return {
            "drafters": list(self.drafters),
            "steps": self.steps,
            "steps_with_drafts": self.drafting_steps,
            "steps_to_explore": self.explored,
            "tokens": self.tokens,
            "drafted": {name: list(tally.drafted) for name, tally in self.tallies.items()},
            "accepted": {name: list(tally.accepted) for name, tally in self.tallies.items()},
            "gain": self.plain_seconds / self.seconds if self.seconds else 1.0,
            "saved_seconds": self.plain_seconds - self.seconds,
            "step_seconds": costs.at(1),
            "row_seconds": costs.at(2) - costs.at(1),
            "row_fetched_bytes": costs.fetch.bytes_at(2) - costs.fetch.bytes_at(1),
            "draft_seconds": dict(self.draft_seconds),
        }


class Speculator:
    """One answer's drafts.  Tokens that are certain are pushed; then drafts after the last one may be asked for."""

    def __init__(self, shared: Speculation, drafters: Sequence[Drafter], tokens: Sequence[int]):
        self._shared, self._drafters = shared, drafters
        self._pending: tuple[str, list[Draft]] = ("", [])
        self.push(tokens)

    def push(self, tokens: Sequence[int]) -> None:
        for drafter in self._drafters:
            drafter.push(tokens)

    def propose(self, session: Session, token: int, rows: int, room: int) -> list[int]:
        """Drafts after `token` that are worth a place in a step which has so many rows without them.  room: how many
        more it could have."""
        drafter, drafts = self._chosen(session, token, rows, min(room, DRAFTS))
        self._pending = (drafter, drafts)
        return [draft.token for draft in drafts]

    def _chosen(self, session: Session, token: int, rows: int, room: int) -> tuple[str, list[Draft]]:
        shared = self._shared
        if shared.in_a_row >= ANCHORED:
            shared.in_a_row = 0
            return "", []
        best: tuple[float, Drafter, list[Draft], int] | None = None
        for drafter in self._drafters:
            name, most = drafter.name, min(MOST[drafter.name], room)
            drafts: list[Draft] = []
            if drafter.free:
                drafts = drafter.propose(session, token, most, 0.0)
                most = len(drafts)
            if not most:
                continue
            shared.idle[name] += 1
            if shared.explores(name):
                return self._explore(drafter, drafts, session, token)
            if not drafter.free and shared.idle[name] % RESTS > 1:
                continue
            chances = self._chances(drafter, drafts, most)
            depth, gain = best_depth(chances, rows, shared.costs, shared.draft_seconds[name])
            if depth and (best is None or gain > best[0]):
                best = (gain, drafter, drafts, depth)
        if best is None:
            return "", []
        _, chosen, drafts, depth = best
        shared.patience[chosen.name] = EXPLORED
        if not chosen.free:
            drafts = self._ask(chosen, session, token, rows, depth)
            depth = len(drafts)
        self._tried(chosen)
        return chosen.name, drafts[:depth]

    def _tried(self, drafter: Drafter) -> None:
        self._shared.idle[drafter.name] = 0
        self._shared.trials[drafter.name] += 1

    def _explore(
        self, drafter: Drafter, drafts: list[Draft], session: Session, token: int
    ) -> tuple[str, list[Draft]]:
        """A single draft tells whether it is worth more."""
        if not drafter.free:
            session.engine.loader.settle(
                session.state.slot
            )  # what has waited since the last time is not this draft's cost
            begin = time.perf_counter()
            drafts = drafter.propose(session, token, 1, 0.0)
            self._shared.asked(drafter.name, len(drafts), time.perf_counter() - begin)
        self._tried(drafter)
        self._shared.explored += 1
        return drafter.name, drafts[:1]

    def _ask(self, drafter: Drafter, session: Session, token: int, rows: int, depth: int) -> list[Draft]:
        """Drafts that cost time; those that turn out to be unlikely are left out."""
        shared = self._shared
        if shared.idle[drafter.name] > RESTS:
            session.engine.loader.settle(session.state.slot)
        begin = time.perf_counter()
        row = shared.costs.at(rows + 1) - shared.costs.at(rows)
        each = shared.costs.at(rows) / rows  # what a token costs otherwise
        drafts = drafter.propose(session, token, depth, row / each if each else 0.0)
        shared.asked(drafter.name, len(drafts), time.perf_counter() - begin)
        # What they cost is spent by now.
        keep, _ = best_depth(self._chances(drafter, drafts, len(drafts)), rows, shared.costs)
        return drafts[:keep]

    def _chances(self, drafter: Drafter, drafts: Sequence[Draft], most: int) -> list[float]:
        sure = [draft.sure for draft in drafts] or [-1] * most
        return [self._shared.chances.of(drafter.name, place, each) for place, each in enumerate(sure)]

    def judged(self, tokens: Sequence[int]) -> tuple[int, int]:
        """What the step really gave: drafts that were right, and the token after them.  Says how many drafts there
        were, and how many of them were right."""
        name, drafts = self._pending
        shared, accepted = self._shared, 0
        shared.drafting_steps += bool(drafts)
        for place, draft in enumerate(drafts):
            tally = shared.tallies[name]
            tally.drafted[place] += 1
            if place < len(tokens):  # those after a wrong one were never looked at
                right = draft.token == tokens[place]
                shared.chances.told(name, place, draft.sure, right)
                tally.accepted[place] += right
                accepted += right
        self._pending = ("", [])
        self.push(tokens)
        return len(drafts), accepted


def verify(
    generation: Generation, ids: Sequence[int], logits: NDArray[np.float32], position: int
) -> Iterator[Step]:
    """The tokens that follow: one for ids[0], which is certain, and one for every draft that was right.

    ids: what the step read, from `position` on; logits [len(ids), vocab]
    """
    for place, row in enumerate(logits):
        step = generation.next(row, position + place + 1)
        yield step
        if step.finish_reason is not None or ids[place + 1 : place + 2] != [step.token]:
            return
