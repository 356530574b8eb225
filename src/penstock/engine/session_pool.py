"""Sessions that nobody is using, kept for whoever continues their tokens: in memory, and behind it on disk."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from penstock.engine.engine import Engine
from penstock.engine.session import Session
from penstock.engine.shelf import Shelf

WORTH: Final = 16  # tokens in common below which a session is left for somebody else
LEAST: Final = 64 << 20  # bytes for sessions, and
MOST: Final = 1 << 30  # as far as there is memory that the plan has no use for
FULL: Final = 8  # sessions that such memory should hold
PENDING_SHARE: Final = 4  # of the budget, a quarter may be sessions that wait to be saved


class Taken(NamedTuple):
    """A session for a prompt; where it comes from: "memory", "disk" or "none"; and if it is new, why: "new" where no
    session has begun like this, "changed" where one has and cannot return to what they have in common."""

    session: Session
    source: str
    reason: str = ""


@dataclass(eq=False, slots=True)
class _Idle:
    session: Session
    kind: str  # where in a conversation it stands, as the shelf calls it
    source: str = "memory"

    @property
    def shared(self) -> bool:
        """Whether several conversations may go on from here.  Where an answer has ended, only one does."""
        return self.kind != "end"


class SessionPool:
    """Idle sessions; the least recently used leave first, to the shelf if there is one.

    budget  bytes of state, of idle sessions and of those in use, as far as `in_use` tells of them
    shelf   sessions on disk
    """

    def __init__(self, engine: Engine, budget: int | None = None, shelf: Shelf | None = None):
        self.engine, self.shelf = engine, shelf
        self.budget = _budget(engine) if budget is None else budget
        self.in_use = 0
        self._idle: list[_Idle] = []  # least recently used first
        self._bytes = 0  # of their state
        self._lock = threading.Lock()

    # ── for a request ─────────────────────────────────────────────────────────────────────────────────────

    def fetch(self, prompt: Sequence[int]) -> None:
        """Brings a session from the shelf that is of more use for a prompt than any in memory.  Takes as long as the
        disk does: not for the thread that runs steps."""
        if self.shelf is None:
            return
        with self._lock:
            here = max((self._usable(idle.session, prompt) for idle in self._idle), default=0)
        found = self.shelf.fetch(prompt[:-1], max(here + 1, WORTH))
        if found is not None:
            self._add(_Idle(*found, "disk"))

    def take(self, prompt: Sequence[int]) -> Taken:
        """A session that has read a beginning of the prompt, as long as possible, and at least one token less than
        all of it.  The session is the caller's until `give`."""
        with self._lock:
            best, most, begun = None, WORTH - 1, False
            for idle in self._idle:
                usable = self._usable(idle.session, prompt)
                if usable > most:
                    best, most = idle, usable
                begun = begun or usable == CHANGED
            if best is None:
                return Taken(self.engine.session(), "none", "changed" if begun else "new")
            self._remove(best)
            session = best.session
            if best.shared:
                self._append(best)
                session = session.fork()
        session.rewind(session.position - most)
        return Taken(session, best.source)

    def keep(self, session: Session, kind: str, back: int = 0) -> None:
        """Others may want to go on from here, or from so many tokens `back`, whatever becomes of the session."""
        if session.position - back < WORTH:
            return
        if not self._has_room(session):
            if (
                self.shelf is not None
            ):  # without a copy; and with what is `back`, which nobody can take away here
                self.shelf.save(session, kind)
            return
        copy = session.fork()
        copy.rewind(back)
        if self.shelf is not None:
            self.shelf.save_later(copy, kind)
        if kind != "frontier":
            self._add(_Idle(copy, kind))

    def give(self, session: Session) -> None:
        """Nobody uses the session any more."""
        if session.position >= WORTH:
            self._add(_Idle(session, "end"))

    def usable(self, prompt: Sequence[int]) -> int:
        """How many tokens of a prompt need not be read."""
        with self._lock:
            return max((self._usable(idle.session, prompt) for idle in self._idle), default=0)

    # ── memory ────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def bytes(self) -> int:
        """State of the idle sessions."""
        return self._bytes

    def make_room(self, in_use: int) -> None:
        """Sessions in use take so much: idle ones leave as far as the budget wants it."""
        with self._lock:
            self.in_use = in_use
            self._shrink()

    def save(self) -> None:
        """Puts what is not on the shelf there, the most recently used first.  Waits for the disk."""
        if self.shelf is not None:
            for idle in reversed(list(self._idle)):
                self.shelf.save(idle.session, idle.kind)

    def clear(self) -> int:
        """Forgets the idle sessions in memory; how many there were."""
        with self._lock:
            count = len(self._idle)
            self._idle.clear()
            self._bytes = 0
        return count

    def copy(self, number: int) -> Session | None:
        """A copy of the session that was used so many sessions before the latest."""
        with self._lock:
            return self._idle[-1 - number].session.fork() if number < len(self._idle) else None

    def __len__(self) -> int:
        return len(self._idle)

    def _add(self, new: _Idle) -> None:
        with self._lock:
            tokens = new.session._tokens
            for other in self._idle:
                if other.session._tokens == tokens:
                    self._remove(other)
                    break
            self._append(new)
            self._shrink()

    def _append(self, idle: _Idle) -> None:
        self._idle.append(idle)
        self._bytes += self.engine.state_bytes(idle.session.position)

    def _remove(self, idle: _Idle) -> None:
        self._idle.remove(idle)
        self._bytes -= self.engine.state_bytes(idle.session.position)

    def _has_room(self, session: Session) -> bool:
        """Makes room for a copy of a session in use, if there can be any."""
        size = self.engine.state_bytes(session.position)
        with self._lock:
            self._shrink(size)
            return self._total() + size <= self.budget

    def _total(self) -> int:
        return self._bytes + self.in_use + (0 if self.shelf is None else self.shelf.pending)

    def _shrink(self, more: int = 0) -> None:
        """Idle sessions leave until all that there is, and so many bytes more, fit the budget."""
        while self._idle and self._total() + more > self.budget:
            leaving = self._idle[0]
            self._remove(leaving)
            if self.shelf is None or self.shelf.store.holds(leaving.session._tokens):
                continue
            size = self.engine.state_bytes(leaving.session.position)
            few = self.shelf.pending + size <= self.budget // PENDING_SHARE
            if not (few and self.shelf.save_later(leaving.session, leaving.kind)):
                self.shelf.save(leaving.session, leaving.kind)  # its memory is wanted now

    def _usable(self, session: Session, prompt: Sequence[int]) -> int:
        """How many of the prompt's tokens the session has read, or can return to; CHANGED if it cannot."""
        common = common_length(session._tokens, prompt[:-1])
        if session.position - common <= session.max_rewind:
            return common
        return CHANGED if common >= WORTH else 0


def _budget(engine: Engine) -> int:
    """What the plan has for sessions, and of what it leaves over as much as is of use."""
    plan, full = engine.plan, engine.state_bytes(engine.context)
    useful = min(max(FULL * full, LEAST), max(full, MOST))
    if plan.budget is None:
        return useful
    return max(plan.state, min(useful, plan.state + plan.budget - plan.total))


CHANGED: Final = -1


def common_length(left: Sequence[int], right: Sequence[int]) -> int:
    """How many tokens two sequences begin with in common.

    >>> common_length([1, 2, 3], [1, 2, 4, 5])
    2
    """
    length = min(len(left), len(right))
    for start in range(0, length, 1024):  # lists are compared much faster than their items one by one
        stop = min(start + 1024, length)
        if left[start:stop] != right[start:stop]:
            return next(place for place in range(start, stop) if left[place] != right[place])
    return length
