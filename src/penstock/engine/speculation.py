"""Drafts that are checked in one step: several tokens for little more than one costs, where they are right.

A step reads the next token and some drafts after it; each row of logits says what really follows.  Tokens are drawn
from these rows one after another exactly as without drafts, from the same random numbers, with the same penalties and
grammar, for as long as the token drawn is the draft that the next row was computed for.  So text and probabilities
are the same token for token, whoever drafts: a draft that is wrong is never used, and leaves no trace in the session.
"""

import time
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from penstock.engine.drafters import Draft, Drafter, MtpDrafter, NgramDrafter
from penstock.engine.gate import Chances, RowCosts, best_depth
from penstock.engine.session import Session
from penstock.engine.steps import Generation, Step

MOST: Final = {"mtp": 4, "ngram": 8}  # drafts at a time
EXPLORED: Final = 64  # steps without drafts after which a few are tried all the same: things may have changed
UNKNOWN: Final = 4  # likewise, while it is not known what a row costs
TRIAL: Final = 2  # drafts then
SLOWLY: Final = 0.05  # share of a new duration in the one to expect


class Speculation:
    """What an engine has learned about drafts: whose are right how often, and what they cost."""

    def __init__(self, drafters: Sequence[str]):
        self.drafters = tuple(drafters)
        self.costs, self.chances = RowCosts(), Chances()
        self.draft_seconds = dict.fromkeys(drafters, 0.0)  # of one draft
        self.drafted = {name: [0] * MOST[name] for name in drafters}  # by place
        self.accepted = {name: [0] * MOST[name] for name in drafters}
        self.steps = self.drafting_steps = self.rows = self.tokens = 0
        self.idle = 0  # steps since drafts were last tried

    def begin(self, tokens: Sequence[int]) -> "Speculator":
        """An answer that continues these tokens."""
        makers: dict[str, type[Drafter]] = {"ngram": NgramDrafter, "mtp": MtpDrafter}
        return Speculator(self, [makers[name]() for name in self.drafters], tokens)

    def told(self, rows: int, tokens: int, seconds: float) -> None:
        """A step of nothing but answers: its rows, and the tokens that came of it."""
        self.costs.told(rows, seconds)
        self.steps += 1
        self.rows += rows
        self.tokens += tokens

    def stats(self) -> dict[str, Any]:
        plain, wide = self.costs.at(1), self.costs.at(2)
        return {
            "drafters": list(self.drafters),
            "steps": self.steps,
            "steps_with_drafts": self.drafting_steps,
            "tokens": self.tokens,
            "drafted": {name: list(counts) for name, counts in self.drafted.items()},
            "accepted": {name: list(counts) for name, counts in self.accepted.items()},
            "step_seconds": plain,
            "row_seconds": wide - plain,
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
        shared = self._shared
        shared.idle += 1
        explores = shared.idle >= (EXPLORED if shared.costs.known else UNKNOWN)
        best: tuple[float, Drafter | None, list[Draft], int] = (1.0, None, [], 0)
        for drafter in self._drafters:
            most = min(MOST[drafter.name], room)
            drafts: list[Draft] = []
            if drafter.free:
                drafts = drafter.propose(session, token, most, 0.0)
                most = len(drafts)
            chances = self._chances(drafter, drafts, most)
            depth, gain = best_depth(chances, rows, shared.costs, shared.draft_seconds[drafter.name])
            if explores and best[1] is None and most:
                best = (1.0, drafter, drafts, min(TRIAL, most))
            elif depth and gain > best[0]:
                best = (gain, drafter, drafts, depth)
        _, chosen, drafts, depth = best
        if chosen is None:
            self._pending = ("", [])
            return []
        if not chosen.free:
            drafts = self._ask(chosen, session, token, rows, depth, explores)
            depth = len(drafts)
        shared.idle = 0
        self._pending = (chosen.name, drafts[:depth])
        return [draft.token for draft in drafts[:depth]]

    def _ask(
        self, drafter: Drafter, session: Session, token: int, rows: int, depth: int, explores: bool
    ) -> list[Draft]:
        """Drafts that cost time; those that turn out to be unlikely are left out."""
        shared, begin = self._shared, time.perf_counter()
        row = shared.costs.at(rows + 1) - shared.costs.at(rows)
        each = shared.costs.at(rows) / rows  # what a token costs otherwise
        least = 0.0 if explores or not each else row / each
        drafts = drafter.propose(session, token, depth, least)
        seconds = (time.perf_counter() - begin) / max(1, len(drafts))
        known = shared.draft_seconds[drafter.name]
        shared.draft_seconds[drafter.name] = known + SLOWLY * (seconds - known) if known else seconds
        if explores:
            return drafts
        # What they cost is spent by now.
        keep, _ = best_depth(self._chances(drafter, drafts, len(drafts)), rows, shared.costs)
        return drafts[:keep]

    def _chances(self, drafter: Drafter, drafts: Sequence[Draft], most: int) -> list[float]:
        sure = [draft.sure for draft in drafts] or [-1] * most
        return [self._shared.chances.of(drafter.name, place, each) for place, each in enumerate(sure)]

    def judged(self, tokens: Sequence[int]) -> None:
        """What the step really gave: drafts that were right, and the token after them."""
        name, drafts = self._pending
        shared = self._shared
        if drafts:
            shared.drafting_steps += 1
        for place, draft in enumerate(drafts):
            shared.drafted[name][place] += 1
            if place < len(tokens):  # those after a wrong one were never looked at
                right = draft.token == tokens[place]
                shared.chances.told(name, place, draft.sure, right)
                shared.accepted[name][place] += right
        self._pending = ("", [])
        self.push(tokens)


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
