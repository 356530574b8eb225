"""A step that is begun before its tokens are known here.

Where logits lie on a device, the token after them is chosen there.  So the next step can begin while that choice is
still being made: it reads the token where the choice leaves it, and the device need not wait for the host between two
tokens.  Such a step counts for nothing until it is committed.  Who runs a step next finds it done, if it is that one
and its tokens are the ones that were chosen; if not it is dropped, and sessions are as if it had never been.
"""

from collections.abc import Callable, Collection, Sequence
from typing import Final, NamedTuple

from penstock.backend.base import Choosing, Logits
from penstock.backend.state import Step
from penstock.engine.session import Session

LONGEST: Final = 64  # steps

Work = Sequence[tuple[Session, list[int], int]]  # session, ids, how many of their last rows have logits


class _Begun(NamedTuple):
    step: Step  # a token of each sequence
    choices: Sequence[Choosing]
    logits: Logits  # [sequences, vocab]


class Ahead:
    """The step that has been begun early, if there is one.

    After one that was in vain there is a break, twice as long each time: others use the engine as well, who are in
    each other's way.  discard: what a step has left of these slots is forgotten
    """

    def __init__(self, discard: Callable[[Step, Collection[int]], None]) -> None:
        self._discard = discard
        self._begun: _Begun | None = None
        self._break = self._left = 0  # steps: how long the last one was, and how much of it is left

    @property
    def allowed(self) -> bool:
        return self._begun is None and self._left == 0

    def begin(self, step: Step, choices: Sequence[Choosing], logits: Logits) -> None:
        self._begun = _Begun(step, choices, logits)

    def has(self, sessions: Sequence[Session]) -> bool:
        """Whether the next step of these has begun."""
        begun = self._begun
        return begun is not None and {session.state.slot for session in sessions} <= {*begun.step.slots}

    def take(self, work: Work) -> list[Logits] | None:
        """The logits of each part [1, vocab], if it was this work that was begun, perhaps with others; None if it was
        not.  In either case it is over."""
        if self._begun is None:
            self._left = max(0, self._left - 1)
            return None
        rows = self._rows(self._begun, work)
        if rows is None:
            self._break = self._left = min(LONGEST, max(1, 2 * self._break))
            self.drop()
            return None
        found = [self._begun.logits[row : row + 1] for row in rows]
        self._break = 0
        self.drop({session.state.slot for session, _, _ in work})
        return found

    def _rows(self, begun: _Begun, work: Work) -> list[int] | None:
        rows = {slot: row for row, slot in enumerate(begun.step.slots)}
        found = []
        for session, ids, wanted in work:
            row = rows.get(session.state.slot)
            if row is None or wanted != 1 or begun.step.positions[row] != session.position:
                return None
            if ids != [begun.choices[row].result().token]:
                return None
            found.append(row)
        return found

    def drop(self, but: Collection[int] = ()) -> None:
        """It was in vain, but for these slots."""
        begun, self._begun = self._begun, None
        if begun is not None:
            self._discard(begun.step, {*begun.step.slots} - {*but})
