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
from contextlib import suppress

from penstock.engine.engine import Engine
from penstock.engine.pace import Pace
from penstock.engine.requests import FIRST_FRONTIER, Active, Behind, Failed, Progress, Request, Update
from penstock.engine.session_pool import WORTH, SessionPool, common_length
from penstock.errors import BusyError, ContextLengthError, PenstockError


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
        self._active: list[Active] = []
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
        active = Active(request, self.pool.take(request.tokens))
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
                request.behind = Behind(active, place)
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

    def _pause(self, active: Active) -> None:
        """The session goes to the pool, which may have no room for it; the request goes to the head of the queue."""
        self.paused += 1
        active.request.paused = active.tokens
        self._active.remove(active)
        self.pool.give(active.session)
        with self._changed:
            self._waiting.appendleft(active.request)

    # ── steps ─────────────────────────────────────────────────────────────────────────────────────────────

    def _choose(self) -> "list[tuple[Active, list[int], bool]]":
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

    def _measure(self, work: "list[tuple[Active, list[int], bool]]", seconds: float) -> None:
        read = sum(len(ids) for active, ids, _ in work if active.prompting)
        if read == 0:
            self._pace.decoded(seconds)
        elif any(not active.prompting for active, _, _ in work):
            self._pace.read(read, seconds)

    def _advance(self, active: Active, ids: list[int], logits: "object") -> None:
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

    def _keep(self, active: Active) -> None:
        """Part of a prompt has been read: is this a place to return to?"""
        position, session = active.session.position, active.session
        if not active.left and not active.resumed:
            # What follows may be told differently next time, so the prompt's end is kept.
            self.pool.keep(session, "prompt", back=min(position - active.stable, session.max_rewind))
        elif position == active.request.shared:
            self.pool.keep(session, "system")
        elif self.pool.shelf is not None and position >= FIRST_FRONTIER and _is_power_of_two(position):
            self.pool.keep(session, "frontier")

    def _leave(self, active: Active, last: Update | None = None) -> None:
        self._active.remove(active)
        self.pool.in_use = self._in_use()
        self.pool.give(active.session)
        if last is not None:
            active.request.emit(last)

    def _one_by_one(self, work: "list[tuple[Active, list[int], bool]]", error: PenstockError) -> None:
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
