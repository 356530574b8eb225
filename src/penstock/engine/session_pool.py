"""Sessions that nobody is using, kept for whoever continues their tokens."""

from collections.abc import Sequence
from typing import Final

from penstock.engine.engine import Engine
from penstock.engine.session import Session

WORTH: Final = 16  # tokens in common below which a session is left for somebody else


class SessionPool:
    """Idle sessions of at most `budget` bytes of state; the least recently used go first."""

    def __init__(self, engine: Engine, budget: int = 1 << 30):
        self.engine, self.budget = engine, budget
        self._idle: list[Session] = []  # least recently used first

    def take(self, prompt: Sequence[int]) -> Session:
        """A session that has read a beginning of the prompt, as long as possible, and at least one token less than
        all of it.  The session is the caller's until `give`."""
        best, most = None, WORTH - 1
        for session in self._idle:
            usable = self._usable(session, prompt)
            if usable > most:
                best, most = session, usable
        if best is None:
            return self.engine.session()
        self._idle.remove(best)
        best.rewind(best.position - most)
        return best

    def keep_prompt(self, session: Session) -> None:
        """A prompt has been read.  What follows it may be told differently next time, so its end is kept."""
        if session.position >= WORTH:
            self.give(session.fork())

    def give(self, session: Session) -> None:
        """Nobody uses the session any more."""
        if session.position < WORTH:
            return
        tokens = session.tokens
        self._idle = [other for other in self._idle if other.tokens != tokens]
        self._idle.append(session)
        while self.bytes > self.budget and self._idle:
            self._idle.pop(0)

    @property
    def bytes(self) -> int:
        return sum(session.state.live_bytes() for session in self._idle)

    def __len__(self) -> int:
        return len(self._idle)

    def _usable(self, session: Session, prompt: Sequence[int]) -> int:
        """How many of the prompt's tokens the session has read, or can return to."""
        tokens = session.tokens
        common = 0
        for mine, wanted in zip(tokens, prompt[:-1], strict=False):
            if mine != wanted:
                break
            common += 1
        return common if session.position - common <= session.max_rewind else 0
