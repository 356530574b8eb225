"""Many requests on one engine: those that are being answered advance together, step by step.

Policy.  Up to `parallel` requests have a slot; the others wait, and clients take turns (`waiting.py`).  A step takes
one token of every slot that is decoding, and a piece of a prompt (`batching.py`).  A request whose prompt begins like
one that is being read waits for it, rather than read the same again.  If the sessions in use outgrow their memory,
the youngest loses its slot and waits.
"""

import logging
import threading
import time

from penstock.engine.engine import Engine
from penstock.engine.prefix_cache import PrefixCache
from penstock.engine.requests import Failed, Request, Scored, SlotState
from penstock.engine.slots import Slots
from penstock.engine.step_loop import StepLoop
from penstock.engine.waiting import WaitingLine
from penstock.errors import ContextLengthError, DeviceLostError, PenstockError, ShutdownError


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
        self._changed = threading.Condition()
        self._line = WaitingLine(waiting, self._changed)
        self.slots = Slots(engine, self.prefix_cache, parallel)
        self.loop = StepLoop(engine, self._line, self.slots, self.prefix_cache)
        self._running = self._ended = False
        self._wanted: str | None = None  # "parked" or "awake", if somebody has asked for it
        self._thread: threading.Thread | None = None

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
            self._line.add(request)
            self._changed.notify()

    @property
    def active(self) -> int:
        return len(self.slots)

    @property
    def waiting(self) -> int:
        return len(self._line)

    @property
    def ended(self) -> bool:
        """Whether it takes no more requests."""
        return self._ended

    def snapshot(self) -> list[SlotState]:
        """How far each slot is, oldest first.  Takes no lock: a step may end meanwhile."""
        return [slot.state() for slot in self.slots]

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
        while (self.slots or self._line) and time.monotonic() < end:
            time.sleep(0.02)
        with self._changed:
            self._running, self._ended = False, True
            self._changed.notify()
        if self._thread is not None and self.ready:  # reading weights may take minutes, for nothing
            self._thread.join()
        self._end_all(ShutdownError("the server is shutting down"))

    def _end_all(self, error: PenstockError) -> None:
        """Nobody has a slot or waits any more."""
        with self._changed:
            over = [*(slot.request for slot in self.slots), *self._line.empty()]
            self.slots.clear()
        for request in over:
            request.emit(Failed(error))

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
                if self._running and self.loop.idle and self._wanted is None:
                    in_vain = not self._changed.wait(self._patience())
                if not self._running:
                    return
                parks = self.loop.idle and (in_vain or self._wanted == "parked")
                wakes = self._wanted == "awake"
                if parks or wakes:
                    self._wanted = None
            try:
                if parks:
                    self._park()
                elif wakes:
                    self.engine.load()
                else:
                    self.loop.step()
            except DeviceLostError as error:
                self._give_up(error)
                return
            except Exception as error:  # nobody may wait for ever because one step went wrong
                logging.getLogger(__name__).exception("a step failed")
                for slot in self.slots:
                    self.loop.leave(slot, Failed(error))

    def _give_up(self, error: DeviceLostError) -> None:
        """Nothing can be computed in this process any more: everybody hears why, also those who come now."""
        with self._changed:
            self.failure, self._ended = error, True
        self._end_all(error)

    def _patience(self) -> float | None:
        """Seconds to wait for requests before parking."""
        return self.park_after if self.park_after and not self.engine.parked else None

    def _park(self) -> None:
        """Weights leave memory; so do sessions, if there is a place on disk for them."""
        if self.prefix_cache.disk is not None:
            self.prefix_cache.save()
            self.prefix_cache.clear()
        self.engine.park()
