"""Many requests on one engine: those that are being answered advance together, step by step.

Policy.  Up to `parallel` requests are active, in order of arrival; the others wait.  A step takes one token of every
request that is decoding, and a piece of the oldest prompt that is not read yet.  While others decode, that piece is
as large as can be read in the time that a step of decoding takes, so that reading a long prompt at most halves their
pace; when nobody decodes it is a whole chunk.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from penstock.engine.engine import Engine
from penstock.engine.sampling import Sampling
from penstock.engine.session import Session
from penstock.engine.session_pool import SessionPool
from penstock.engine.steps import Generation, Step
from penstock.errors import BusyError, ContextLengthError, PenstockError

SMALLEST_PIECE: Final = 16  # tokens of a prompt in a step, however slow reading is
FORGETTING: Final = 0.2  # weight of the latest step in the averages


@dataclass(frozen=True, slots=True)
class Reading:
    """So many of the prompt's tokens are read, the first `cached` of them by somebody before."""

    done: int
    total: int
    cached: int


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
    """What is asked, and whom to tell.  `emit` is called on the scheduler's thread and must not wait."""

    prompt: list[int]
    max_tokens: int
    sampling: Sampling
    emit: Callable[[Update], None]
    cancelled: threading.Event = field(default_factory=threading.Event)

    def cancel(self) -> None:
        """Nobody wants the answer any more: the request is over before the next step."""
        self.cancelled.set()


class _Active:
    """A request with a session."""

    def __init__(self, request: Request, session: Session, generation: Generation):
        self.request, self.session, self.generation = request, session, generation
        self.cached = session.position
        self.left = request.prompt[session.position :]
        self.prompting = True

    def progress(self) -> Progress:
        prompt, remaining = len(self.request.prompt), self.generation.remaining
        read = prompt - len(self.left) if self.prompting else prompt
        return Progress(prompt, self.cached, read, self.request.max_tokens - remaining, remaining)


class Scheduler:
    """Runs requests on a thread of its own, from `start` to `stop`."""

    def __init__(self, engine: Engine, parallel: int = 8, waiting: int = 64, pool: SessionPool | None = None):
        self.engine, self.parallel, self.most_waiting = engine, parallel, waiting
        self.pool = pool or SessionPool(engine)
        self._waiting: deque[Request] = deque()
        self._active: list[_Active] = []
        self._changed = threading.Condition()
        self._running = False
        self._thread: threading.Thread | None = None
        self._decode_seconds = self._token_seconds = 0.0  # of a step of decoding; of a token that is read
        self.steps = self.busy_rows = 0

    # ── from other threads ────────────────────────────────────────────────────────────────────────────────

    def submit(self, request: Request) -> None:
        """Takes a request.  Raises at once what is wrong with it; BusyError if too many wait already."""
        if len(request.prompt) >= self.engine.context:
            raise ContextLengthError(
                f"{len(request.prompt):,} tokens leave no room for an answer in a context of {self.engine.context:,}"
            )
        self.engine.generation(
            self.engine.session(), request.prompt, request.max_tokens, request.sampling
        )  # checks
        with self._changed:
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

    def snapshot(self) -> list[Progress]:
        """How far everybody is, oldest first.  Nobody waits for it: a step may end while it is taken."""
        return [active.progress() for active in list(self._active)]

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
            self._running = False
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()
        for request in [active.request for active in self._active] + list(self._waiting):
            request.emit(Failed(BusyError("the server is shutting down")))
        self._active.clear()
        self._waiting.clear()

    # ── the scheduler's own thread ────────────────────────────────────────────────────────────────────────

    def _run(self) -> None:
        while True:
            with self._changed:
                while self._running and not self._active and not self._waiting:
                    self._changed.wait()
                if not self._running:
                    return
            self.step()

    def step(self) -> None:
        """Admits who can be, and advances everybody once."""
        self._drop_cancelled()
        self._admit()
        work = self._choose()
        if not work:
            return
        begin = time.perf_counter()
        try:
            found = self.engine.advance([(active.session, ids, wants) for active, ids, wants in work])
        except PenstockError as error:
            self._one_by_one(work, error)
            return
        self._measure(work, time.perf_counter() - begin)
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
        while len(self._active) < self.parallel:
            with self._changed:
                if not self._waiting:
                    return
                request = self._waiting.popleft()
            session = self.pool.take(request.prompt)
            generation = self.engine.generation(session, request.prompt, request.max_tokens, request.sampling)
            active = _Active(request, session, generation)
            self._active.append(active)
            request.emit(Reading(active.cached, len(request.prompt), active.cached))

    def _choose(self) -> "list[tuple[_Active, list[int], bool]]":
        """Who advances by which tokens, and whether logits are wanted."""
        decoding = [(active, active.left, True) for active in self._active if not active.prompting]
        work = decoding[: self.engine.plan.chunk]
        room = self.engine.plan.chunk - len(work)
        if decoding and self._token_seconds:
            room = min(room, max(SMALLEST_PIECE, int(self._decode_seconds / self._token_seconds)))
        for active in self._active:
            if active.prompting and room > 0:
                ids = active.left[:room]
                work.append((active, ids, len(ids) == len(active.left)))
                room -= len(ids)
        return work

    def _measure(self, work: "list[tuple[_Active, list[int], bool]]", seconds: float) -> None:
        read = sum(len(ids) for active, ids, _ in work if active.prompting)
        if read == 0:
            self._decode_seconds = _average(self._decode_seconds, seconds)
        else:
            decoding = self._decode_seconds if any(not active.prompting for active, _, _ in work) else 0.0
            self._token_seconds = _average(self._token_seconds, max(0.0, seconds - decoding) / read)

    def _advance(self, active: _Active, ids: list[int], logits: "object") -> None:
        active.left = active.left[len(ids) :]
        if active.prompting:
            active.request.emit(Reading(active.session.position, len(active.request.prompt), active.cached))
            if active.left:
                return
            active.prompting = False
            self.pool.keep_prompt(active.session)
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

    def _leave(self, active: _Active, last: Update | None = None) -> None:
        self._active.remove(active)
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


def _average(before: float, latest: float) -> float:
    return latest if before == 0 else before + FORGETTING * (latest - before)
