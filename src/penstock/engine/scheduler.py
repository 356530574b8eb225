"""Many requests on one engine: those that are being answered advance together, step by step.

Policy.  Up to `parallel` requests are active, in order of arrival; the others wait.  A step takes one token of every
request that is decoding, and a piece of the oldest prompt that is not read yet.  While others decode, that piece is
as large as can be read in the time that a step of decoding takes, so that reading a long prompt at most halves their
pace; when nobody decodes it is a whole chunk.  A request whose prompt begins like one that is being read waits for
it, rather than read the same again.  If the sessions in use outgrow their memory, the youngest steps back and waits.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from penstock.engine.constraint import Constraint
from penstock.engine.engine import Engine
from penstock.engine.pace import Pace
from penstock.engine.sampling import Sampling
from penstock.engine.session_pool import WORTH, SessionPool, Taken, common_length
from penstock.engine.steps import Generation, Step
from penstock.errors import BusyError, ContextLengthError, PenstockError

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
    behind: "_Behind | None" = None

    def cancel(self) -> None:
        """Nobody wants the answer any more: the request is over before the next step."""
        self.cancelled.set()

    @property
    def tokens(self) -> list[int]:
        """What a session has to have read before the next token: with what was generated before a pause."""
        return self.prompt if self.paused is None else self.paused


@dataclass(frozen=True, slots=True)
class _Behind:
    """Somebody else who is about to come to a place that a request wants to begin at."""

    active: "_Active"
    place: int

    def comes(self, active: "list[_Active]") -> bool:
        return self.active in active and self.active.prompting and self.active.session.position < self.place


class _Active:
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


class Scheduler:
    """Runs requests on a thread of its own, from `start` to `stop`."""

    def __init__(
        self,
        engine: Engine,
        parallel: int = 8,
        waiting: int = 64,
        pool: SessionPool | None = None,
        park_after: float = 0.0,
    ):
        """park_after: seconds without requests after which the weights leave memory; 0: they never do."""
        self.engine, self.parallel, self.most_waiting = engine, parallel, waiting
        self.pool = SessionPool(engine) if pool is None else pool
        self.park_after = park_after
        self.ready = not engine.parked  # it was once
        self.failure: Exception | None = None  # why it never will be
        self._waiting: deque[Request] = deque()
        self._active: list[_Active] = []
        self._changed = threading.Condition()
        self._running = self._ended = False
        self._wanted: str | None = None  # "parked" or "awake", if somebody has asked for it
        self._thread: threading.Thread | None = None
        self._pace = Pace()
        self.steps = self.busy_rows = self.paused = 0
        self.engine_seconds = 0.0

    # ── from other threads ────────────────────────────────────────────────────────────────────────────────

    def submit(self, request: Request) -> None:
        """Takes a request.  Raises at once what is wrong with it; BusyError if too many wait already."""
        if len(request.prompt) >= self.engine.context:
            raise ContextLengthError(
                f"{len(request.prompt):,} tokens leave no room for an answer in a context of {self.engine.context:,}"
            )
        request.generation = self.engine.generation(
            None, request.prompt, request.max_tokens, request.sampling
        )
        request.generation.sampler.constraint = request.constraint
        with self._changed:
            if self._ended:
                raise BusyError("the server is shutting down")
            if len(self._waiting) >= self.most_waiting:
                raise BusyError(f"{self.most_waiting} requests are waiting already")
            self._waiting.append(request)
            self._changed.notify()

    @property
    def active(self) -> int:
        return len(self._active)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def ended(self) -> bool:
        """Whether it takes no more requests."""
        return self._ended

    def snapshot(self) -> list[Progress]:
        """How far everybody is, oldest first.  Nobody waits for it: a step may end while it is taken."""
        return [active.progress() for active in list(self._active)]

    def park(self, parked: bool = True) -> None:
        """Asks for the weights to leave memory as soon as nobody needs them, or to come back."""
        with self._changed:
            self._wanted = "parked" if parked else "awake"
            self._changed.notify()

    def start(self) -> None:
        self._running = True
        self._thread = threading.Thread(target=self._run, name="penstock-scheduler", daemon=True)
        self._thread.start()

    def stop(self, deadline: float = 0.0) -> None:
        """Lets active requests go on for up to `deadline` seconds, then ends what is left with BusyError."""
        end = time.monotonic() + deadline
        while (self._active or self._waiting) and time.monotonic() < end:
            time.sleep(0.02)
        with self._changed:
            self._running, self._ended = False, True
            self._changed.notify()
        if self._thread is not None and self.ready:  # reading weights may take minutes, for nothing
            self._thread.join()
        for request in [active.request for active in self._active] + list(self._waiting):
            request.emit(Failed(BusyError("the server is shutting down")))
        self._active.clear()
        self._waiting.clear()

    # ── the scheduler's own thread ────────────────────────────────────────────────────────────────────────

    def _run(self) -> None:
        try:
            self.engine.load()
        except Exception as error:
            self.failure = error
            return
        self.ready = True
        while True:
            with self._changed:
                in_vain = False
                if self._running and self._idle() and self._wanted is None:
                    in_vain = not self._changed.wait(self._patience())
                if not self._running:
                    return
                parks = self._idle() and (in_vain or self._wanted == "parked")
                wakes = self._wanted == "awake"
                if parks or wakes:
                    self._wanted = None
            try:
                if parks:
                    self._park()
                elif wakes:
                    self.engine.load()
                else:
                    self.step()
            except Exception as error:  # nobody may wait for ever because one step went wrong
                logging.getLogger(__name__).exception("a step failed")
                for active in list(self._active):
                    self._leave(active, Failed(error))

    def _idle(self) -> bool:
        return not self._active and not self._waiting

    def _patience(self) -> float | None:
        """Seconds to wait for requests before parking."""
        return self.park_after if self.park_after and not self.engine.parked else None

    def _park(self) -> None:
        """Weights leave memory; so do sessions, if there is a shelf for them."""
        if self.pool.shelf is not None:
            self.pool.save()
            self.pool.clear()
        self.engine.park()

    def step(self) -> None:
        """Admits who can be, and advances everybody once."""
        self._drop_cancelled()
        self._admit()
        self._fit()
        work = self._choose()
        if not work:
            return
        begin = time.perf_counter()
        try:
            found = self.engine.advance([(active.session, ids, wants) for active, ids, wants in work])
        except PenstockError as error:
            self._one_by_one(work, error)
            return
        seconds = time.perf_counter() - begin
        self.engine_seconds += seconds
        self._measure(work, seconds)
        self.steps += 1
        self.busy_rows += len(work)
        for (active, ids, _), logits in zip(work, found, strict=True):
            self._advance(active, ids, logits)

    def _drop_cancelled(self) -> None:
        for active in [active for active in self._active if active.request.cancelled.is_set()]:
            self._leave(active)
        with self._changed:
            for request in [request for request in self._waiting if request.cancelled.is_set()]:
                self._waiting.remove(request)

    def _admit(self) -> None:
        with self._changed:
            waiting = list(self._waiting)
        for request in waiting:
            if len(self._active) >= self.parallel:
                return
            if self._follows(request):
                continue
            if not self._has_room(request):
                return
            with self._changed:
                self._waiting.remove(request)
            self._begin(request)

    def _begin(self, request: Request) -> None:
        active = _Active(request, self.pool.take(request.tokens))
        self._active.append(active)
        if not active.resumed:
            request.emit(active.reading())

    def _follows(self, request: Request) -> bool:
        """Whether somebody is reading what this prompt begins with, so that it need not be read twice."""
        if request.behind is not None and request.behind.comes(self._active):
            return True
        request.behind = None
        for active in self._active:
            if not active.prompting:
                continue
            common = common_length(active.request.prompt, request.tokens[:-1])
            places = [place for place in (active.request.shared, active.stable) if place <= common]
            place = max(places, default=0)
            is_new = place - active.session.position >= WORTH
            if is_new and place - self.pool.usable(request.tokens) >= WORTH:
                request.behind = _Behind(active, place)
                return True
        return False

    # ── memory ────────────────────────────────────────────────────────────────────────────────────────────

    def _in_use(self) -> int:
        return sum(self.engine.state_bytes(active.session.position) for active in self._active)

    def _has_room(self, request: Request) -> bool:
        """Whether a session for this prompt fits beside those in use.  One alone always does: the plan has it."""
        needed = self.engine.state_bytes(len(request.tokens))
        return not self._active or self._in_use() + needed <= self.pool.budget

    def _fit(self) -> None:
        """Sees to it that sessions take the memory they may, now that those in use have grown."""
        in_use = self._in_use()
        while in_use > self.pool.budget and len(self._active) > 1:
            youngest = self._active[-1]
            in_use -= self.engine.state_bytes(youngest.session.position)
            self._pause(youngest)
        self.pool.make_room(in_use)

    def _pause(self, active: _Active) -> None:
        """The session goes to the pool, which may have no room for it; the request goes to the head of the queue."""
        self.paused += 1
        active.request.paused = active.tokens
        self._active.remove(active)
        self.pool.give(active.session)
        with self._changed:
            self._waiting.appendleft(active.request)

    # ── steps ─────────────────────────────────────────────────────────────────────────────────────────────

    def _choose(self) -> "list[tuple[_Active, list[int], bool]]":
        """Who advances by which tokens, and whether logits are wanted."""
        decoding = [(active, active.left, True) for active in self._active if not active.prompting]
        work = decoding[: self.engine.plan.chunk]
        room = self.engine.plan.chunk - len(work)
        if decoding:
            room = self._pace.room(room)
        for active in self._active:
            if active.prompting and room > 0:
                cut = active.next_cut(self.pool.shelf is not None) - active.session.position
                ids = active.left[: min(room, cut)]
                work.append((active, ids, len(ids) == len(active.left)))
                room -= len(ids)
        return work

    def _measure(self, work: "list[tuple[_Active, list[int], bool]]", seconds: float) -> None:
        read = sum(len(ids) for active, ids, _ in work if active.prompting)
        if read == 0:
            self._pace.decoded(seconds)
        elif any(not active.prompting for active, _, _ in work):
            self._pace.read(read, seconds)

    def _advance(self, active: _Active, ids: list[int], logits: "object") -> None:
        active.left = active.left[len(ids) :]
        if active.prompting:
            if not active.resumed:
                active.request.emit(active.reading())
            self._keep(active)
            if active.left:
                return
            active.prompting = False
        try:
            step = active.generation.next(logits)  # type: ignore[arg-type]
        except PenstockError as error:
            self._leave(active, Failed(error))
            return
        active.left = [step.token]
        if step.finish_reason is not None:
            self._leave(active, step)
        else:
            active.request.emit(step)

    def _keep(self, active: _Active) -> None:
        """Part of a prompt has been read: is this a place to return to?"""
        position, session = active.session.position, active.session
        if not active.left and not active.resumed:
            # What follows may be told differently next time, so the prompt's end is kept.
            self.pool.keep(session, "prompt", back=min(position - active.stable, session.max_rewind))
        elif position == active.request.shared:
            self.pool.keep(session, "system")
        elif self.pool.shelf is not None and position >= FIRST_FRONTIER and _is_power_of_two(position):
            self.pool.keep(session, "frontier")

    def _leave(self, active: _Active, last: Update | None = None) -> None:
        self._active.remove(active)
        self.pool.in_use = self._in_use()
        self.pool.give(active.session)
        if last is not None:
            active.request.emit(last)

    def _one_by_one(self, work: "list[tuple[_Active, list[int], bool]]", error: PenstockError) -> None:
        """A step failed.  Everybody goes on alone once, so that only those fail whose own work does."""
        if len(work) == 1:
            self._leave(work[0][0], Failed(error))
            return
        for active, ids, wants in work:
            try:
                (logits,) = self.engine.advance([(active.session, ids, wants)])
            except PenstockError as own:
                self._leave(active, Failed(own))
            else:
                with suppress(ValueError):
                    self._advance(active, ids, logits)


def _is_power_of_two(number: int) -> bool:
    return number & (number - 1) == 0
