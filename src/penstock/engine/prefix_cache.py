"""The prefix cache: idle sessions, kept for prompts that begin with their tokens, in memory and behind it on disk."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.engine.engine import Engine
from penstock.engine.session import Session

if TYPE_CHECKING:  # who keeps nothing on disk needs no database
    from penstock.engine.disk_sessions import DiskSessions

MIN_PREFIX: Final = 16  # tokens in common below which a session is not used
MIN_BYTES: Final = 64 << 20  # for sessions, and
MAX_BYTES: Final = 1 << 30  # as far as there is memory that the plan has no use for
FULL_SESSIONS: Final = 8  # that such memory should hold
CHANGED: Final = -1  # tokens of a session that cannot rewind to what it has in common with a prompt
STATE_SHARE: Final = 8  # of the memory, an eighth may be sessions, for which experts give way
PENDING_SHARE: Final = 4  # of the budget, a quarter may be sessions that wait to be saved


class Match(NamedTuple):
    """A session for a prompt; where it comes from: "memory", "disk" or "none"; and if it is new, why: "new" where no
    session has begun like this, "changed" where one has and cannot rewind to what they have in common."""

    session: Session
    source: str
    reason: str = ""


@dataclass(eq=False)
class _Idle:
    """kind: where in a conversation the session stands, as saved sessions call it."""

    session: Session
    kind: str
    source: str = "memory"

    def __post_init__(self) -> None:
        self.tokens = self.session.tokens

    @property
    def shared(self) -> bool:
        """Whether several conversations may go on from here.  Where an answer has ended, only one does."""
        return self.kind != "end"


class PrefixCache:
    """Idle sessions; the least recently used leave first, to disk if there is a place for them.

    budget  bytes of state, of idle sessions and of those in use, as far as `in_use` tells of them
    others  bytes of what else is kept for conversations within that budget
    """

    def __init__(self, engine: Engine, budget: int | None = None, disk: "DiskSessions | None" = None):
        self.engine, self.disk = engine, disk
        self.budget = _budget(engine) if budget is None else budget
        self.in_use = 0
        self.others = 0
        self._idle: list[_Idle] = []  # least recently used first
        self._bytes = 0  # of their state
        self._lock = threading.Lock()

    # ── for a request ─────────────────────────────────────────────────────────────────────────────────────

    def fetch(self, prompt: Sequence[int]) -> None:
        """Loads a session from disk that has more of a prompt than any in memory.  Takes as long as the disk does:
        not for the thread that runs steps."""
        if self.disk is None:
            return
        with self._lock:
            here = max((_usable(idle, prompt) for idle in self._idle), default=0)
        found = self.disk.fetch(prompt[:-1], max(here + 1, MIN_PREFIX))
        if found is not None:
            self._add(_Idle(*found, "disk"))

    def take(self, prompt: Sequence[int]) -> Match:
        """A session that has read the longest prefix of the prompt, at least one token less than all of it.  The
        session is the caller's until `give`."""
        with self._lock:
            best, most, begun = None, MIN_PREFIX - 1, False
            for idle in self._idle:
                usable = _usable(idle, prompt)
                if usable > most:
                    best, most = idle, usable
                begun = begun or usable == CHANGED
            if best is None:
                return Match(self.engine.session(), "none", "changed" if begun else "new")
            self._remove(best)
            session = best.session
            if best.shared:
                self._append(best)
                session = session.fork()
        session.rewind(session.position - most)
        return Match(session, best.source)

    def keep(self, session: Session, kind: str, back: int = 0) -> None:
        """Keeps a copy of a session in use, at its position or so many tokens `back`: others may go on from there."""
        if session.position - back < MIN_PREFIX:
            return
        if not self._has_room(session):
            if self.disk is not None:  # without a copy, so with what is `back`
                self.disk.save(session, kind)
            return
        copy = session.fork()
        copy.rewind(back)
        if self.disk is not None:
            self.disk.save_later(copy, kind)
        if kind != "frontier":
            self._add(_Idle(copy, kind))

    def give(self, session: Session) -> None:
        """The session is idle from now on."""
        if session.position >= MIN_PREFIX:
            self._add(_Idle(session, "end"))

    def usable(self, prompt: Sequence[int]) -> int:
        """How many tokens of a prompt are cached."""
        with self._lock:
            return max((_usable(idle, prompt) for idle in self._idle), default=0)

    def pinned(self) -> dict[str, int]:
        """Tokens that are pinned, by label: the most of each, on disk, or in memory if there is no disk."""
        if self.disk is not None:
            found = [(entry.label, entry.length) for entry in self.disk.pinned()]
        else:
            with self._lock:
                found = [
                    (idle.kind.removeprefix("pinned-"), len(idle.tokens))
                    for idle in self._idle
                    if idle.kind.startswith("pinned-")
                ]
        return {label: max(length for other, length in found if other == label) for label, _ in found}

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
        """Saves what is not on disk, the most recently used first.  Waits for the disk."""
        if self.disk is not None:
            for idle in reversed(list(self._idle)):
                self.disk.save(idle.session, idle.kind)

    def clear(self) -> int:
        """Drops the idle sessions in memory; how many there were."""
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
            same = next((idle for idle in self._idle if idle.tokens == new.tokens), None)
            if same is not None:
                self._remove(same)
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
        return self._bytes + self.in_use + self.others + (0 if self.disk is None else self.disk.pending)

    def _shrink(self, more: int = 0) -> None:
        """Idle sessions leave until all that there is, and so many bytes more, fit the budget."""
        while self._idle and self._total() + more > self.budget:
            leaving = self._idle[0]
            self._remove(leaving)
            if self.disk is None or self.disk.store.holds(leaving.tokens):
                continue
            size = self.engine.state_bytes(leaving.session.position)
            few = self.disk.pending + size <= self.budget // PENDING_SHARE
            if not (few and self.disk.save_later(leaving.session, leaving.kind)):
                self.disk.save(leaving.session, leaving.kind)  # its memory is wanted now


def _usable(idle: _Idle, prompt: Sequence[int]) -> int:
    """How many of the prompt's tokens the session has read, or can rewind to; CHANGED if it cannot."""
    common = 0 if idle.session.lost else common_length(idle.tokens, prompt[:-1])
    if len(idle.tokens) - common <= idle.session.max_rewind:
        return common
    return CHANGED if common >= MIN_PREFIX else 0


def _budget(engine: Engine) -> int:
    """What the plan has for sessions, of what it leaves over as much as is of use, and a share of the experts'."""
    plan, full = engine.plan, engine.state_bytes(engine.context)
    useful = min(max(FULL_SESSIONS * full, MIN_BYTES), max(full, MAX_BYTES))
    if plan.budget is None or plan.most_state is None:
        return useful
    left = plan.state + plan.budget - plan.total
    if engine.options.context is None:
        left = max(left, min(plan.most_state, plan.budget // STATE_SHARE))
    return max(plan.state, min(useful, left))


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
