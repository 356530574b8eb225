"""Requests advance together: who can be is admitted, a step is run, and everybody hears what came of it."""

import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

from penstock.backend.base import Logits
from penstock.engine.batching import Batcher
from penstock.engine.engine import Engine
from penstock.engine.prefix_cache import PrefixCache
from penstock.engine.requests import Failed, Scored, Slot, UnderWay, Update, Work
from penstock.engine.scoring import score_prompt
from penstock.engine.slots import Slots
from penstock.engine.speculation import verify
from penstock.engine.step_watch import StepWatch
from penstock.engine.stepping import Judge
from penstock.engine.steps import Step
from penstock.engine.waiting import WaitingLine
from penstock.errors import DeviceLostError, PenstockError

TOLD_EVERY: Final = 0.5  # seconds; a step over a large piece of a prompt may take a minute


class StepLoop:
    """Takes requests from the line to slots and answers them.  Used by one thread; others may look at the counts."""

    def __init__(self, engine: Engine, line: WaitingLine, slots: Slots, prefix_cache: PrefixCache):
        self._engine, self._line, self._slots, self._prefix_cache = engine, line, slots, prefix_cache
        self._batcher = Batcher(engine)
        self._under_way: deque[UnderWay] = deque()  # steps, oldest first
        self._finished = 0.0  # when the latest one was
        self.steps = self.busy_rows = self.paused = 0
        self.engine_seconds = 0.0
        self.told_every = TOLD_EVERY
        self._told = 0.0  # when those who wait last heard how far it is

    @property
    def prefill_per_second(self) -> float | None:
        """Tokens of prompts read in a second while nobody decodes; None before there was enough to tell."""
        return self._batcher.prefill_per_second

    @property
    def idle(self) -> bool:
        return not self._slots and not self._line and not self._under_way

    def step(self) -> None:
        """Admits who can be, and advances every slot once."""
        self._drop_cancelled()
        self._admit()
        self._fit()
        work = self._batcher.choose(list(self._slots), self._under_way, self._prefix_cache.disk is not None)
        if work:
            self._begin_step(work)
        if self._under_way and (not work or len(self._under_way) >= self._engine.stepper.depth):
            self._finish_step(self._under_way.popleft())

    def _begin_step(self, work: Sequence[Work]) -> None:
        watch, self._told = StepWatch(self._engine.stepper), time.monotonic()
        for part in work:
            if part.slot.generation is not None and part.wants and not part.scores:
                self._engine.stepper.expect(part.slot.generation, part.rows)
        try:
            begun = self._engine.stepper.begin(
                [(part.slot.session, part.ids, part.rows) for part in work], self._progress(work)
            )
        except PenstockError as error:
            self._finish_all()
            # Whoever had an earlier step that failed too is not here any more.
            self._one_by_one([part for part in work if part.slot in self._slots], error)
            return
        for part in work:
            part.slot.ahead += len(part.ids)
        self._under_way.append(UnderWay(work, begun, watch))

    def _finish_all(self) -> None:
        while self._under_way:
            self._finish_step(self._under_way.popleft())

    def _finish_step(self, step: UnderWay) -> None:
        work = step.work
        try:
            found = self._engine.stepper.finish(step.begun, self._judge(work))
        except PenstockError as error:
            for part in work:
                part.slot.ahead -= len(part.ids)
            self._finish_all()
            here = [part for part in work if part.slot in self._slots]
            if step.begun.committed:  # others behind it have failed with it
                for part in here:
                    self.leave(part.slot, Failed(error))
            elif here:
                self._one_by_one(here, error)
            return
        for part in work:
            part.slot.ahead -= len(part.ids)
        # Whoever is not here any more had an earlier step that failed.
        pairs = [pair for pair in zip(work, found, strict=True) if pair[0].slot in self._slots]
        work, found = [part for part, _ in pairs], [logits for _, logits in pairs]
        scores = [score_prompt(part, logits) for part, logits in zip(work, found, strict=True)]
        for part, logits in zip(work, found, strict=True):
            self._start(part, logits)
        self._run_ahead(work)
        self._settle(work)
        spent = step.watch.spent(self._finished)
        self._finished = time.perf_counter()
        self.engine_seconds += spent.seconds
        self._batcher.took(work, spent)
        self.steps += 1
        self.busy_rows += len(work)
        for part, logits, scored in zip(work, found, scores, strict=True):
            self._advance(part, logits, scored)

    def _progress(self, work: Sequence[Work]) -> Callable[[float], None] | None:
        reading = [part for part in work if part.slot.prefilling and not part.slot.resumed]
        return partial(self._tell, reading) if reading else None

    def _judge(self, work: Sequence[Work]) -> Judge | None:
        """Says how many tokens of a part count: all but drafts that are wrong."""

        def judge(number: int, logits: Logits) -> int:
            part, slot = work[number], work[number].slot
            if not part.drafts:
                return len(part.ids)
            assert slot.generation is not None
            slot.verified, slot.failure = [], None
            try:
                for step in verify(slot.generation, part.ids, logits, slot.session.position):
                    slot.verified.append(step)
            except PenstockError as error:
                slot.failure = error
            return max(1, len(slot.verified))

        return judge if any(part.drafts for part in work) else None

    def _tell(self, reading: Sequence[Work], share: float) -> None:
        """Those whose prompts are being read hear how far that is, also in the middle of a step."""
        now = time.monotonic()
        if now - self._told >= self.told_every and share < 1:  # its end is told anyway
            self._told = now
            for part in reading:
                part.slot.request.emit(part.slot.progress(share * len(part.ids)))

    def _drop_cancelled(self) -> None:
        for slot in self._slots:
            if slot.request.cancelled.is_set() and not slot.ahead:
                self.leave(slot)
        self._line.drop_cancelled()

    def _admit(self) -> None:
        for request in self._line.in_turn(slot.request for slot in self._slots):
            if self._slots.full:
                return
            if self._slots.waits_for_prefix(request):
                continue
            if not self._slots.has_room(request):
                return
            self._line.take(request)
            slot = self._slots.take(request)
            if not slot.resumed:
                request.emit(slot.progress())

    def _fit(self) -> None:
        """Sees to it that sessions take the memory they may, now that those in use have grown."""
        if self._slots.too_large:
            self._finish_all()
        while self._slots.too_large and len(self._slots) > 1:
            youngest = self._slots.youngest
            self._slots.preempt(youngest)
            self._line.put_back(youngest.request)
            self.paused += 1
        self._prefix_cache.make_room(self._slots.bytes)

    # ── what comes of a step ──────────────────────────────────────────────────────────────────────────────

    def _start(self, work: Work, logits: Logits | None) -> None:
        """Tokens of all slots are chosen together, where logits are not on the host."""
        slot = work.slot
        if work.drafts:  # chosen already
            return
        if slot.generation is not None and logits is not None and len(slot.pending) == len(work.ids):
            with suppress(PenstockError):  # said again when the token is asked for
                slot.generation.start(logits[-1])

    def _run_ahead(self, work: Sequence[Work]) -> None:
        """If nobody else will take part in the next step, nor are drafts expected for it, it need not wait until
        these tokens are here."""
        joins = self._line and not self._slots.full
        eager = any(part.slot.speculator is not None and part.slot.speculator.eager for part in work)
        answering = [part.slot.generation for part in work if part.slot.generation and part.wants]
        if not joins and not eager and len(answering) == len(self._slots):
            self._engine.stepper.run_ahead(answering)

    def _settle(self, work: Sequence[Work]) -> None:
        """A step is over when its tokens are here."""
        for part in work:
            if part.slot.generation is not None:
                with suppress(PenstockError):
                    part.slot.generation.settle()

    def _advance(self, work: Work, logits: Logits | None, scored: Scored | Failed | None) -> None:
        slot, request = work.slot, work.slot.request
        if work.drafts:
            self._advance_by(slot, slot.verified, slot.failure)
            return
        slot.pending = slot.pending[len(work.ids) :]
        if slot.prefilling:
            if not slot.resumed:
                request.emit(slot.progress())
            if scored is not None:
                request.scored = slot.session.position
                if isinstance(scored, Failed) or scored.last:
                    self.leave(slot, scored)
                    return
                if scored.steps:
                    request.emit(scored)
            self._slots.keep(slot)
            if slot.pending:
                return
            slot.prefilling = False
        assert slot.generation is not None
        assert logits is not None
        try:
            step = slot.generation.next(logits[-1])
        except PenstockError as error:
            self.leave(slot, Failed(error))
            return
        self._advance_by(slot, [step])

    def _advance_by(self, slot: Slot, steps: Sequence[Step], failure: PenstockError | None = None) -> None:
        """An answer goes on by some tokens, or ends with them."""
        if slot.speculator is not None and slot.speculator.awake:
            drafted, accepted = slot.speculator.judged(slot.session, [step.token for step in steps])
            slot.request.drafted += drafted
            slot.request.accepted += accepted
        for step in steps:
            slot.pending = [step.token]
            if step.finish_reason is not None:
                self.leave(slot, step)
                return
            slot.request.emit(step)
        if failure is not None:
            self.leave(slot, Failed(failure))

    def leave(self, slot: Slot, last: Update | None = None) -> None:
        """A request is over.  last: what it hears"""
        if isinstance(last, Failed) and isinstance(last.error, DeviceLostError):
            raise last.error  # which is the end for all
        self._slots.leave(slot)
        if last is not None:
            slot.request.emit(last)

    def _one_by_one(self, work: Sequence[Work], error: PenstockError) -> None:
        """A step failed.  Every slot goes on alone once, so that only those fail whose own work does."""
        if len(work) == 1:
            self.leave(work[0].slot, Failed(error))
            return
        for part in work:
            try:
                (logits,) = self._engine.stepper.advance(
                    [(part.slot.session, part.ids, part.rows)], self._progress([part]), self._judge([part])
                )
            except PenstockError as own:
                self.leave(part.slot, Failed(own))
            else:
                with suppress(ValueError):
                    self._advance(part, logits, score_prompt(part, logits))
