"""Many requests on one engine: those that are being answered advance together, step by step.

Policy.  Up to `parallel` requests have a slot; the others wait.  Clients take turns: who has fewest slots comes next,
and among equals who had one longest ago.  If too many wait, the client who has most of them gives one up.  A step
takes one token of every slot that is decoding, and a piece of the oldest prompt that is not read yet.  While others
decode, that piece is as large as can be read in the time that a step of decoding takes, so that prefill of a long
prompt at most halves their pace; when nobody decodes it is a whole chunk.  A request whose prompt begins like one
that is being read waits for it, rather than read the same again.  If the sessions in use outgrow their memory, the
youngest loses its slot and waits.

A prompt that is scored needs logits of every row, so its pieces are small, and they take turns with those of prompts
that are only read.
"""

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from operator import itemgetter
from typing import Final

import numpy as np
from numpy.typing import NDArray

from penstock.engine.engine import Engine
from penstock.engine.pace import Pace
from penstock.engine.prefix_cache import MIN_PREFIX, Match, PrefixCache, common_length
from penstock.engine.requests import (
    FIRST_CHECKPOINT,
    Failed,
    PrefixWait,
    Request,
    Scored,
    Slot,
    SlotState,
    UnderWay,
    Update,
    Work,
)
from penstock.engine.scoring import score_prompt, score_rows
from penstock.errors import BusyError, ContextLengthError, DeviceLostError, PenstockError, ShutdownError

ENOUGH: Final = 256  # tokens that have to be read before their pace says something
Logits = NDArray[np.float32]
TOLD_EVERY: Final = 0.5  # seconds; a step over a large piece of a prompt may take a minute


class Scheduler:
    """Runs requests on a thread of its own, from `start` to `stop`."""

    def __init__(
        self,
        engine: Engine,
        parallel: int = 8,
        waiting: int = 64,
        prefix_cache: PrefixCache | None = None,
        park_after: float = 0.0,
    ):
        """park_after: seconds without requests after which the weights leave memory; 0: they never do."""
        self.engine, self.parallel, self.most_waiting = engine, parallel, waiting
        self.prefix_cache = PrefixCache(engine) if prefix_cache is None else prefix_cache
        self.park_after = park_after
        self.ready = not engine.parked  # it was once
        self.failure: Exception | None = None  # why it never will be, or will be no more
        self._waiting: deque[Request] = deque()
        self._slots: list[Slot] = []
        self._last_turn: dict[str, int] = {}  # of clients that are here, in the order in which they had one
        self._changed = threading.Condition()
        self._running = self._ended = False
        self._wanted: str | None = None  # "parked" or "awake", if somebody has asked for it
        self._thread: threading.Thread | None = None
        self._pace, self._scoring_pace = Pace(), Pace()
        self._scored_last = False
        self._under_way: deque[UnderWay] = deque()  # steps, oldest first
        self._finished = 0.0  # when the latest one was
        self.steps = self.busy_rows = self.paused = 0
        self.engine_seconds = 0.0
        self.told_every = TOLD_EVERY
        self._told = 0.0  # when those who wait last heard how far it is
        self._read_tokens, self._read_seconds = 0, 0.0  # in steps that did nothing but read prompts

    # ── from other threads ────────────────────────────────────────────────────────────────────────────────

    def submit(self, request: Request) -> None:
        """Takes a request.  Raises at once what is wrong with it; BusyError if too many wait already."""
        length, context = len(request.prompt), self.engine.context
        if request.score is not None and length > context:
            raise ContextLengthError(f"{length:,} tokens do not fit into a context of {context:,}")
        if request.score is None or request.max_tokens:
            if length >= context:
                raise ContextLengthError(
                    f"{length:,} tokens leave no room for an answer in a context of {context:,}"
                )
            request.generation = self.engine.generation(
                None, request.prompt, request.max_tokens, request.sampling
            )
            request.generation.sampler.constraint = request.constraint
        elif length < 2:  # nothing predicts the first token
            request.emit(Scored([], last=True))
            return
        with self._changed:
            if self.failure is not None:
                raise self.failure
            if self._ended:
                raise ShutdownError("the server is shutting down")
            if len(self._waiting) >= self.most_waiting:
                self._turn_away(request.client)
            self._waiting.append(request)
            self._changed.notify()

    def _turn_away(self, newcomer: str) -> None:
        """The latest of the client who has most waiting, which may be the new one."""
        busy = BusyError(f"{self.most_waiting} requests are waiting already")
        counts = Counter(request.client for request in self._waiting if request.preempted is None)
        crowd, most = max(counts.items(), key=itemgetter(1), default=(newcomer, 0))
        if counts[newcomer] + 1 >= most:
            raise busy
        latest = next(
            each for each in reversed(self._waiting) if each.client == crowd and each.preempted is None
        )
        self._waiting.remove(latest)
        latest.emit(Failed(busy))

    @property
    def prefill_per_second(self) -> float | None:
        """Tokens of prompts read in a second while nobody decodes; None before there was enough to tell."""
        enough = self._read_tokens >= min(ENOUGH, self.engine.plan.chunk)
        return self._read_tokens / self._read_seconds if enough and self._read_seconds else None

    @property
    def active(self) -> int:
        return len(self._slots)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def ended(self) -> bool:
        """Whether it takes no more requests."""
        return self._ended

    def snapshot(self) -> list[SlotState]:
        """How far each slot is, oldest first.  Takes no lock: a step may end meanwhile."""
        return [slot.state() for slot in list(self._slots)]

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
        """Lets active requests go on for up to `deadline` seconds, then ends what is left with ShutdownError."""
        end = time.monotonic() + deadline
        while (self._slots or self._waiting) and time.monotonic() < end:
            time.sleep(0.02)
        with self._changed:
            self._running, self._ended = False, True
            self._changed.notify()
        if self._thread is not None and self.ready:  # reading weights may take minutes, for nothing
            self._thread.join()
        for request in [slot.request for slot in self._slots] + list(self._waiting):
            request.emit(Failed(ShutdownError("the server is shutting down")))
        self._slots.clear()
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
            except DeviceLostError as error:
                self._give_up(error)
                return
            except Exception as error:  # nobody may wait for ever because one step went wrong
                logging.getLogger(__name__).exception("a step failed")
                for slot in list(self._slots):
                    self._leave(slot, Failed(error))

    def _give_up(self, error: DeviceLostError) -> None:
        """Nothing can be computed in this process any more: everybody hears why, also those who come now."""
        with self._changed:
            self.failure, self._ended = error, True
            over = [slot.request for slot in self._slots] + list(self._waiting)
            self._slots.clear()
            self._waiting.clear()
        for request in over:
            request.emit(Failed(error))

    def _idle(self) -> bool:
        return not self._slots and not self._waiting and not self._under_way

    def _patience(self) -> float | None:
        """Seconds to wait for requests before parking."""
        return self.park_after if self.park_after and not self.engine.parked else None

    def _park(self) -> None:
        """Weights leave memory; so do sessions, if there is a place on disk for them."""
        if self.prefix_cache.disk is not None:
            self.prefix_cache.save()
            self.prefix_cache.clear()
        self.engine.park()

    def step(self) -> None:
        """Admits who can be, and advances every slot once."""
        self._drop_cancelled()
        self._admit()
        self._fit()
        work = self._choose()
        if work:
            self._begin_step(work)
        if self._under_way and (not work or len(self._under_way) >= self.engine.depth):
            self._finish_step(self._under_way.popleft())

    def _begin_step(self, work: Sequence[Work]) -> None:
        begin, self._told = time.perf_counter(), time.monotonic()
        try:
            begun = self.engine.begin(
                [(part.slot.session, part.ids, part.rows) for part in work], self._progress(work)
            )
        except PenstockError as error:
            self._finish_all()
            self._one_by_one(work, error)
            return
        for part in work:
            part.slot.ahead += len(part.ids)
        self._under_way.append(UnderWay(work, begun, begin))

    def _finish_all(self) -> None:
        while self._under_way:
            self._finish_step(self._under_way.popleft())

    def _finish_step(self, step: UnderWay) -> None:
        work = step.work
        try:
            found = self.engine.finish(step.begun)
        except PenstockError as error:
            for part in work:
                part.slot.ahead -= len(part.ids)
            self._finish_all()
            here = [part for part in work if part.slot in self._slots]
            if step.begun.committed:  # others behind it have failed with it
                for part in here:
                    self._leave(part.slot, Failed(error))
            elif here:
                self._one_by_one(here, error)
            return
        for part in work:
            part.slot.ahead -= len(part.ids)
        begin = max(step.begin, self._finished)
        self._finished = time.perf_counter()
        # Whoever is not here any more had an earlier step that failed.
        pairs = [pair for pair in zip(work, found, strict=True) if pair[0].slot in self._slots]
        work, found = [part for part, _ in pairs], [logits for _, logits in pairs]
        scores = [score_prompt(part, logits) for part, logits in zip(work, found, strict=True)]
        for part, logits in zip(work, found, strict=True):
            self._start(part, logits)
        self._run_ahead(work)
        self._settle(work)
        seconds = time.perf_counter() - begin
        self.engine_seconds += seconds
        self._measure(work, seconds)
        self.steps += 1
        self.busy_rows += len(work)
        for part, logits, scored in zip(work, found, scores, strict=True):
            self._advance(part, logits, scored)

    def _progress(self, work: Sequence[Work]) -> Callable[[float], None] | None:
        reading = [part for part in work if part.slot.prefilling and not part.slot.resumed]
        return partial(self._tell, reading) if reading else None

    def _tell(self, reading: Sequence[Work], share: float) -> None:
        """Those whose prompts are being read hear how far that is, also in the middle of a step."""
        now = time.monotonic()
        if now - self._told >= self.told_every and share < 1:  # its end is told anyway
            self._told = now
            for part in reading:
                part.slot.request.emit(part.slot.progress(share * len(part.ids)))

    def _drop_cancelled(self) -> None:
        for slot in [slot for slot in self._slots if slot.request.cancelled.is_set() and not slot.ahead]:
            self._leave(slot)
        with self._changed:
            for request in [request for request in self._waiting if request.cancelled.is_set()]:
                self._waiting.remove(request)

    def _admit(self) -> None:
        for request in self._in_turn():
            if len(self._slots) >= self.parallel:
                return
            if self._waits_for_prefix(request):
                continue
            if not self._has_room(request):
                return
            with self._changed:
                self._waiting.remove(request)
            self._last_turn[request.client] = max(self._last_turn.values(), default=0) + 1
            self._begin(request)

    def _in_turn(self) -> list[Request]:
        """Those that wait: first who has lost a slot, then whose client has fewest, and had the last one long ago."""
        with self._changed:
            waiting = list(self._waiting)
        served = Counter(slot.request.client for slot in self._slots)
        here = {*served, *(request.client for request in waiting)}
        self._last_turn = {client: turn for client, turn in self._last_turn.items() if client in here}
        ranks: dict[Request, tuple[int, int]] = {}
        for request in waiting:
            rank = -1 if request.preempted is not None else served[request.client]
            ranks[request] = rank, self._last_turn.get(request.client, 0)
            served[request.client] += 1
        return sorted(waiting, key=ranks.__getitem__)

    def _begin(self, request: Request) -> None:
        if request.score is None or request.scored == len(request.prompt):
            # What is to be pinned has to be passed: a session that is beyond cannot go back there.
            match = self.prefix_cache.take(
                request.tokens[: request.shared + 1] if request.pin else request.tokens
            )
        else:  # what is cached has no logits any more
            match = Match(self.engine.session(), "none", "new")
        slot = Slot(request, match)
        self._slots.append(slot)
        if request.pin and slot.session.position == request.shared:
            self.prefix_cache.keep(slot.session, f"pinned-{request.pin}")
        if not slot.resumed:
            request.emit(slot.progress())

    def _waits_for_prefix(self, request: Request) -> bool:
        """Whether a slot is reading what this prompt begins with, so that it need not be read twice."""
        if request.waits_for is not None and request.waits_for.is_coming(self._slots):
            return True
        request.waits_for = None
        for slot in self._slots if request.score is None else ():
            if not slot.prefilling or slot.request.score is not None:
                continue
            common = common_length(slot.request.prompt, request.tokens[:-1])
            lengths = [length for length in (slot.request.shared, slot.stable) if length <= common]
            length = max(lengths, default=0)
            is_new = length - slot.session.position >= MIN_PREFIX
            if is_new and length - self.prefix_cache.usable(request.tokens) >= MIN_PREFIX:
                request.waits_for = PrefixWait(slot, length)
                return True
        return False

    # ── memory ────────────────────────────────────────────────────────────────────────────────────────────

    def _in_use(self) -> int:
        return sum(self.engine.state_bytes(slot.session.position) for slot in self._slots)

    def _has_room(self, request: Request) -> bool:
        """Whether a session for this prompt fits beside those in use.  One alone always does: the plan has it."""
        needed = self.engine.state_bytes(len(request.tokens))
        return not self._slots or self._in_use() + needed <= self.prefix_cache.budget

    def _fit(self) -> None:
        """Sees to it that sessions take the memory they may, now that those in use have grown."""
        in_use = self._in_use()
        if in_use > self.prefix_cache.budget:
            self._finish_all()
        while in_use > self.prefix_cache.budget and len(self._slots) > 1:
            youngest = self._slots[-1]
            in_use -= self.engine.state_bytes(youngest.session.position)
            self._preempt(youngest)
        self.prefix_cache.make_room(in_use)

    def _preempt(self, slot: Slot) -> None:
        """The session goes to the cache, which may have no room for it; the request goes to the head of the queue."""
        self.paused += 1
        slot.request.preempted = slot.tokens
        self._slots.remove(slot)
        if slot.generation is not None:
            self.prefix_cache.give(slot.session)
        with self._changed:
            self._waiting.appendleft(slot.request)

    # ── steps ─────────────────────────────────────────────────────────────────────────────────────────────

    def _choose(self) -> list[Work]:
        """Which slots advance by which tokens."""
        decoding = [Work(slot, slot.pending, True) for slot in self._slots if not slot.prefilling]
        free = [part for part in decoding if not part.slot.ahead]
        # Where several steps can be under way, each takes its share of those who decode.
        work = free[: min(self.engine.plan.chunk, -(-len(decoding) // self.engine.depth))]
        if work and self.engine.has_begun([part.slot.session for part in work]):
            return work  # without those who have come since; they take part in the next one
        room = self.engine.plan.chunk - len(work)
        scoring = self._scores_next()
        if scoring:
            room = min(room, score_rows(self.engine))
        if decoding:
            room = (self._scoring_pace if scoring else self._pace).room(room)
        for slot in self._slots:
            if slot.prefilling and slot.scoring == scoring and room > 0 and self._follows(slot, work):
                cut = slot.next_cut(self.prefix_cache.disk is not None) - slot.session.position
                ids = slot.pending[slot.ahead :][: min(room, cut)]
                slot.stops = len(ids) == cut
                work.append(Work(slot, ids, slot.ahead + len(ids) == len(slot.pending), scoring))
                room -= len(ids)
        return work

    def _follows(self, slot: Slot, work: Sequence[Work]) -> bool:
        """Whether a slot's next piece may begin, though the one before may be under way still."""
        if not slot.ahead:
            return True
        committed = all(
            step.begun.committed for step in self._under_way if any(p.slot is slot for p in step.work)
        )
        return committed and not slot.stops and not any(part.rows for part in work)

    def _scores_next(self) -> bool:
        """Whether prompts are scored in the next step, or only read: by turns, if there are both."""
        kinds = {slot.scoring for slot in self._slots if slot.prefilling}
        self._scored_last = not self._scored_last if len(kinds) == 2 else True in kinds
        return self._scored_last

    def _measure(self, work: Sequence[Work], seconds: float) -> None:
        read = sum(len(part.ids) for part in work if part.slot.prefilling)
        if read == 0:
            self._pace.decoded(seconds)
            self._scoring_pace.decoded(seconds)
        elif all(part.slot.prefilling and not part.scores for part in work):
            self._read_tokens += read
            self._read_seconds += seconds
        elif any(not part.slot.prefilling for part in work):
            (self._scoring_pace if self._scored_last else self._pace).read(read, seconds)

    def _start(self, work: Work, logits: Logits | None) -> None:
        """Tokens of all slots are chosen together, where logits are not on the host."""
        slot = work.slot
        if slot.generation is not None and logits is not None and len(slot.pending) == len(work.ids):
            with suppress(PenstockError):  # said again when the token is asked for
                slot.generation.start(logits[-1])

    def _run_ahead(self, work: Sequence[Work]) -> None:
        """If nobody else will take part in the next step, it need not wait until these tokens are here."""
        joins = self._waiting and len(self._slots) < self.parallel
        answering = [part.slot.generation for part in work if part.slot.generation and part.wants]
        if not joins and len(answering) == len(self._slots):
            self.engine.run_ahead(answering)

    def _settle(self, work: Sequence[Work]) -> None:
        """A step is over when its tokens are here."""
        for part in work:
            if part.slot.generation is not None:
                with suppress(PenstockError):
                    part.slot.generation.settle()

    def _advance(self, work: Work, logits: Logits | None, scored: Scored | Failed | None) -> None:
        slot, request = work.slot, work.slot.request
        slot.pending = slot.pending[len(work.ids) :]
        if slot.prefilling:
            if not slot.resumed:
                request.emit(slot.progress())
            if scored is not None:
                request.scored = slot.session.position
                if isinstance(scored, Failed) or scored.last:
                    self._leave(slot, scored)
                    return
                if scored.steps:
                    request.emit(scored)
            self._keep(slot)
            if slot.pending:
                return
            slot.prefilling = False
        assert slot.generation is not None
        assert logits is not None
        try:
            step = slot.generation.next(logits[-1])
        except PenstockError as error:
            self._leave(slot, Failed(error))
            return
        slot.pending = [step.token]
        if step.finish_reason is not None:
            self._leave(slot, step)
        else:
            request.emit(step)

    def _keep(self, slot: Slot) -> None:
        """Part of a prompt has been read: keeps the session where others may go on from here."""
        position, session = slot.session.position, slot.session
        if slot.generation is None:
            return
        if not slot.pending and not slot.resumed:
            # What follows may be told differently next time, so the prompt's end is kept.
            back = min(position - slot.stable, session.max_rewind)
            self.prefix_cache.keep(session, "prompt", back=back)
        elif position == slot.request.shared:
            self.prefix_cache.keep(session, f"pinned-{slot.request.pin}" if slot.request.pin else "system")
        elif (
            self.prefix_cache.disk is not None and position >= FIRST_CHECKPOINT and _is_power_of_two(position)
        ):
            self.prefix_cache.keep(session, "frontier")

    def _leave(self, slot: Slot, last: Update | None = None) -> None:
        if isinstance(last, Failed) and isinstance(last.error, DeviceLostError):
            raise last.error  # which is the end for all
        self._slots.remove(slot)
        self.prefix_cache.in_use = self._in_use()
        if slot.generation is not None:  # what was only scored is rarely continued
            self.prefix_cache.give(slot.session)
        if last is not None:
            slot.request.emit(last)

    def _one_by_one(self, work: Sequence[Work], error: PenstockError) -> None:
        """A step failed.  Every slot goes on alone once, so that only those fail whose own work does."""
        if len(work) == 1:
            self._leave(work[0].slot, Failed(error))
            return
        for part in work:
            try:
                (logits,) = self.engine.advance(
                    [(part.slot.session, part.ids, part.rows)], self._progress([part])
                )
            except PenstockError as own:
                self._leave(part.slot, Failed(own))
            else:
                with suppress(ValueError):
                    self._advance(part, logits, score_prompt(part, logits))


def _is_power_of_two(number: int) -> bool:
    return number & (number - 1) == 0
