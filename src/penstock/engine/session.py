"""One timeline of tokens and the exact attention state that belongs to it."""

import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from penstock.kv.snapshot import Snapshot, save_snapshot
from penstock.kv.state import SequenceState

if TYPE_CHECKING:
    from penstock.engine.engine import Engine


class Session:
    """One timeline of tokens.  Made by `engine.session()`.

    >>> session.feed([0, 17, 4], logits="last").shape
    (4096,)
    >>> session.rewind(1)                    # take a token back
    >>> branch = session.fork()              # two futures from one past
    >>> logits = branch.feed([5])
    >>> session.tokens, branch.tokens
    ([0, 17], [0, 17, 5])

    `session.last_logits` are those after the last token, if they were asked for.
    """

    def __init__(self, engine: "Engine", state: SequenceState, tokens: Sequence[int] = ()):
        self.engine = engine
        self.state = state
        self._tokens = list(tokens)
        engine.written[state.slot] = state.position
        weakref.finalize(state, engine.written.pop, state.slot, None).atexit = False
        self.last_logits: NDArray[np.float32] | None = None  # after the last token, if they were asked for

    @property
    def position(self) -> int:
        """Tokens processed so far."""
        return self.state.position

    @property
    def tokens(self) -> list[int]:
        """The tokens processed so far (a copy)."""
        return list(self._tokens)

    def tokens_from(self, position: int) -> list[int]:
        """Those processed from there on (a copy)."""
        return self._tokens[position:]

    @property
    def lost(self) -> bool:
        """Whether what it remembered went with a machine that is away; feeding it reads its tokens again first."""
        return self.position > 0 and self.state.pool.lost(self.state.slot)

    @property
    def max_rewind(self) -> int:
        """How many tokens can be taken back now.  All of them can always be."""
        return self.position - self.state.floor

    def feed(
        self, ids: Sequence[int], logits: str = "last", progress: Callable[[float], None] | None = None
    ) -> NDArray[np.float32] | None:
        """Processes tokens.  `logits`: "last" → [vocab], "all" → [len(ids), vocab], "none" → None.  `progress`: see
        `Engine.feed`."""
        return self.engine.feed([(self, ids)], logits, progress)[0]

    def rewind(self, count: int) -> None:
        """Forgets the last `count` tokens; raises RewindError beyond `max_rewind` (unless all are forgotten).

        >>> logits = session.feed(range(100))
        >>> session.rewind(64)
        >>> session.position
        36
        """
        self.state.rewind(count)
        if count:
            del self._tokens[self.position :]
            self.last_logits = None

    def fork(self) -> "Session":
        """An independent session with the same past."""
        self.engine.loader.settle(self.state.slot)
        copy = Session(self.engine, self.state.fork(), self._tokens)
        copy.last_logits = None if self.last_logits is None else self.last_logits.copy()
        return copy

    def save(self, path: str | Path) -> None:
        """Writes the session to a file that `engine.load_session` of the same model reads.  Atomic: the file is whole
        or not there."""
        save_snapshot(Path(path), self.snapshot(), self.engine.fingerprint)

    def snapshot(self) -> Snapshot:
        """All that there is to save.  It is not a copy: the session must stay as it is until it is written."""
        self.engine.loader.settle(self.state.slot)
        logits = None if self.last_logits is None else np.asarray(self.last_logits)
        return Snapshot(self._tokens, self.state, logits)

    def _retreat(self, position: int) -> None:
        """What it remembered of the rest is lost."""
        if position < self.position:
            self.state.position = self.state.floor = position
            del self._tokens[position:]
            self.last_logits = None

    def _resume(self, tokens: Sequence[int]) -> None:
        """It stands where it stood, though what it remembered has yet to be made again."""
        self._tokens = list(tokens)
        self.state.position = self.state.floor = len(tokens)

    def _advance(self, ids: Sequence[int], left_out: int = 0) -> None:
        """left_out: drafts that were read too, and do not count"""
        self.state.advance(len(ids), left_out)
        self.engine.written[self.state.slot] = max(self.engine.written[self.state.slot], self.position)
        self._tokens.extend(ids)
        self.last_logits = None
