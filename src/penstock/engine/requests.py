"""Requests: what is asked, what happens to it, and how far it is while it has a session."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from penstock.engine.constraint import Constraint
from penstock.engine.sampling import Sampling
from penstock.engine.session_pool import Taken
from penstock.engine.steps import Generation, Step

FIRST_FRONTIER: Final = 2048  # tokens; a long prompt is saved there and at every doubling on the way


@dataclass(frozen=True, slots=True)
class Reading:
    """So many of the prompt's tokens are read, the first `cached` of them by somebody before: `source` and `reason`
    are those of `Taken`."""

    done: int
    total: int
    cached: int
    source: str = "none"
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Failed:
    """The request is over without an answer, or in the middle of one."""

    error: BaseException


Update = Reading | Step | Failed


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a request is that is being answered, in tokens; `read` counts those that were `cached`."""

    prompt: int
    cached: int
    read: int
    decoded: int
    remaining: int


@dataclass(eq=False)
class Request:
    """What is asked, and whom to tell.  `emit` is called on the scheduler's thread and must not wait.

    shared    tokens at the prompt's beginning that other conversations have too: a system prompt
    stable    tokens at the prompt's beginning that the next turn will have too: all but what makes the model speak
    constraint  what holds the answer to a form
    """

    prompt: list[int]
    max_tokens: int
    sampling: Sampling
    emit: Callable[[Update], None]
    shared: int = 0
    stable: int | None = None
    constraint: Constraint | None = None
    cancelled: threading.Event = field(default_factory=threading.Event)
    generation: Generation | None = None  # from when it is accepted
    paused: list[int] | None = None  # all its tokens when it had to step back
    behind: "Behind | None" = None

    def cancel(self) -> None:
        """Nobody wants the answer any more: the request is over before the next step."""
        self.cancelled.set()

    @property
    def tokens(self) -> list[int]:
        """What a session has to have read before the next token: with what was generated before a pause."""
        return self.prompt if self.paused is None else self.paused


@dataclass(frozen=True, slots=True)
class Behind:
    """Somebody else who is about to come to a place that a request wants to begin at."""

    active: "Active"
    place: int

    def comes(self, active: "list[Active]") -> bool:
        return self.active in active and self.active.prompting and self.active.session.position < self.place


class Active:
    """A request with a session."""

    def __init__(self, request: Request, taken: Taken):
        assert request.generation is not None
        self.request, self.generation = request, request.generation
        self.session, self.source, self.reason = taken
        self.generation.session = self.session
        self.cached = self.session.position
        self.left = request.tokens[self.cached :]
        self.prompting = True
        self.resumed = request.paused is not None

    @property
    def tokens(self) -> list[int]:
        return [*self.session.tokens, *self.left]

    def reading(self) -> Reading:
        position, total = self.session.position, len(self.request.prompt)
        return Reading(min(position, total), total, min(self.cached, total), self.source, self.reason)

    def progress(self) -> Progress:
        prompt, remaining = len(self.request.prompt), self.generation.remaining
        read = max(0, prompt - len(self.left)) if self.prompting else prompt
        return Progress(
            prompt, min(self.cached, prompt), read, self.request.max_tokens - remaining, remaining
        )

    @property
    def stable(self) -> int:
        """Where the prompt's end is kept: as near to `request.stable` as the session can return."""
        length = len(self.request.prompt)
        wanted = length - 1 if self.request.stable is None else self.request.stable
        return max(wanted, length - self.session.engine.options.max_rewind)

    def next_cut(self, frontiers: bool) -> int:
        """The position up to which may be read before the session is worth keeping."""
        position, end = self.session.position, self.session.position + len(self.left)
        cuts = [end]
        if position < self.request.shared < end:
            cuts.append(self.request.shared)
        if frontiers:
            frontier = FIRST_FRONTIER
            while frontier <= position:
                frontier *= 2
            cuts.append(min(frontier, end))
        return min(cuts)
