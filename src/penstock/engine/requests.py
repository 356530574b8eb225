"""Requests: what is asked, what happens to it, and the slot that it has while it is being answered."""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from penstock.engine.constraint import Constraint
from penstock.engine.prefix_cache import Match
from penstock.engine.progress import PrefillProgress
from penstock.engine.sampling import Sampling
from penstock.engine.speculation import Speculator
from penstock.engine.step_watch import StepWatch
from penstock.engine.stepping import Begun
from penstock.engine.steps import Generation, Step
from penstock.errors import PenstockError

FIRST_CHECKPOINT: Final = 2048  # tokens; a long prompt is saved there and at every doubling on the way


@dataclass(frozen=True, slots=True)
class Scored:
    """The next tokens of a prompt that is scored, each with its log-probability.  `last`: the request is over."""

    steps: list[Step]
    last: bool = False


@dataclass(frozen=True, slots=True)
class Failed:
    """The request is over without an answer, or in the middle of one."""

    error: BaseException


Update = PrefillProgress | Scored | Step | Failed


@dataclass(frozen=True, slots=True)
class SlotState:
    """How far a request is that is being answered, in tokens; `read` counts those that were `cached`."""

    prompt: int
    cached: int
    read: int
    decoded: int
    remaining: int


@dataclass(eq=False)
class Request:
    """What is asked, and whom to tell.  `emit` is called on the scheduler's thread and must not wait.

    shared      tokens at the prompt's beginning that other conversations have too: a system prompt
    stable      tokens at the prompt's beginning that the next turn will have too: all but what makes the model speak
    constraint  what holds the answer to a form
    score       if set, the prompt is scored: a log-probability for each of its tokens after the first, which nothing
                predicts, and so many alternatives.  With `max_tokens` 0 that is all.
    client      who asks: clients take turns
    pin         if set, what is `shared` is pinned under this label: on disk it stays when others leave
    """

    prompt: list[int]
    max_tokens: int
    sampling: Sampling
    emit: Callable[[Update], None]
    shared: int = 0
    stable: int | None = None
    constraint: Constraint | None = None
    score: int | None = None
    pin: str = ""
    client: str = ""
    cancelled: threading.Event = field(default_factory=threading.Event)
    generation: Generation | None = None  # from when it is accepted, unless it generates nothing
    preempted: list[int] | None = None  # all its tokens when it lost its slot
    drafted: int = 0  # tokens that were guessed for its answer
    accepted: int = 0  # and were right
    scored: int = 0  # tokens of the prompt whose successors are scored
    waits_for: "PrefixWait | None" = None

    def cancel(self) -> None:
        """Nobody wants the answer any more: the request is over before the next step."""
        self.cancelled.set()

    @property
    def tokens(self) -> list[int]:
        """What a session has to have read before the next token: with what was generated before it lost its slot."""
        if self.preempted is not None:
            return self.preempted
        return (
            self.prompt if self.max_tokens else self.prompt[:-1]
        )  # nothing follows a prompt that is only scored


@dataclass(frozen=True, slots=True)
class PrefixWait:
    """A request waits until another slot has read the prefix that both have in common."""

    slot: "Slot"
    length: int

    def is_coming(self, slots: "list[Slot]") -> bool:
        read = self.slot.session.position - self.slot.ahead
        return self.slot in slots and self.slot.prefilling and read < self.length


class Slot:
    """A request with a session.  `pending`: the tokens that the session has to read next."""

    def __init__(self, request: Request, match: Match):
        self.request, self.generation = request, request.generation
        self.session, self.source, self.reason = match
        if self.generation is not None:
            self.generation.session = self.session
        self.cached = self.session.position
        self.pending = request.tokens[self.cached :]
        self.unread = len(self.pending)  # when it began
        self.prefilling = True
        self.resumed = request.preempted is not None
        self.ahead = 0  # of the pending tokens, those in steps that are under way
        self.stops = False  # the latest of these steps ends where the session is to be kept
        self.begun = time.monotonic()
        self.speculator: Speculator | None = None  # from when it decodes
        self.verified: list[Step] = []  # what a step with drafts gave
        self.failure: PenstockError | None = None  # and why there is no more

    @property
    def tokens(self) -> list[int]:
        return [*self.session.tokens, *self.pending]

    @property
    def scoring(self) -> bool:
        """Whether the next tokens of the prompt are scored."""
        request = self.request
        scores = request.score is not None and self.prefilling
        return scores and request.scored <= self.session.position < len(request.prompt)

    def progress(self, further: float = 0.0) -> PrefillProgress:
        """further: tokens that a step has read so far which is not over yet."""
        position, total = self.session.position + int(further), len(self.request.prompt)
        return PrefillProgress(
            min(position, total),
            total,
            min(self.cached, total),
            self.source,
            self.reason,
            time.monotonic() - self.begun,
        )

    def state(self) -> SlotState:
        prompt, limit = len(self.request.prompt), self.request.max_tokens
        remaining = 0 if self.generation is None else self.generation.remaining
        read = max(0, prompt - len(self.pending)) if self.prefilling else prompt
        return SlotState(prompt, min(self.cached, prompt), read, limit - remaining, remaining)

    @property
    def stable(self) -> int:
        """Where the prompt's end is kept: as near to `request.stable` as the session can rewind."""
        length = len(self.request.prompt)
        wanted = length - 1 if self.request.stable is None else self.request.stable
        return max(wanted, length - self.session.engine.options.max_rewind)

    def next_cut(self, checkpoints: bool) -> int:
        """The position up to which may be read before the session is worth keeping, or scoring goes on."""
        position = self.session.position
        end = position + len(self.pending) - self.ahead
        cuts = [end]
        cuts += [cut for cut in (self.request.shared, self.request.scored) if position < cut < end]
        if checkpoints:
            checkpoint = FIRST_CHECKPOINT
            while checkpoint <= position:
                checkpoint *= 2
            cuts.append(min(checkpoint, end))
        return min(cuts)


class Work(NamedTuple):
    """What a slot does in a step.

    wants   whether it needs the logits after its last token
    scores  whether it needs those of all tokens, because they are scored
    drafts  whether all tokens but the first are drafts
    """

    slot: Slot
    ids: list[int]
    wants: bool
    scores: bool = False
    drafts: bool = False

    @property
    def rows(self) -> int:
        """How many of its last rows have logits."""
        return len(self.ids) if self.scores or self.drafts else int(self.wants)


class UnderWay(NamedTuple):
    """A step that has begun."""

    work: Sequence[Work]
    begun: Begun
    watch: StepWatch
