"""Some layers of the model, doing what the head orders: the same on the head itself and on every worker.

Sequences have numbers that the head gives.  Orders that need no answer (`apply`) travel with the next message that
does, so that all stages do the same things in the same order.
"""

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from penstock.backend.base import Backend, Logits
from penstock.backend.device import DeviceBackend
from penstock.backend.state import DRAFTS, StatePool, Step
from penstock.cluster.choosing import Best, answered, choose, ridden
from penstock.cluster.message import Message, take
from penstock.engine.runner import LocalRunner
from penstock.errors import ClusterError, DeviceLostError, PenstockError
from penstock.model import architecture

HELD: Final = 16  # rows of logits of a sequence that stay on the last stage; more of them cross
Order = Sequence[Any]  # its name, and what it is about


class Runners:
    """Those of one machine's stages, by turn, which share its weights.  `open_runners` loads them, now or when they
    are needed again."""

    def __init__(self, backend: Backend, open_runners: Callable[[], list[LocalRunner]]):
        self._backend, self._open = backend, open_runners
        self._here: list[LocalRunner] = []

    def open_with(self, open_runners: Callable[[], list[LocalRunner]]) -> None:
        self._open = open_runners

    def at(self, turn: int) -> LocalRunner:
        if not self._here:
            self._here = self._open()
        return self._here[turn]

    def loaded(self, turn: int) -> LocalRunner | None:
        """None while the weights are away."""
        return self._here[turn] if self._here else None

    def park(self) -> None:
        if self._here:
            for runner in self._here:
                runner.settle()
            self._here[0].close()
            self._here = []
            if isinstance(self._backend, DeviceBackend):
                self._backend.release()


class Stage:
    """Layers of a model that follow each other, and the memory of their sequences.  Used by one thread at a time, but
    for `question`."""

    def __init__(self, number: int, turn: int, backend: Backend, states: StatePool, runners: Runners):
        self.number, self._turn, self.backend, self.states = number, turn, backend, states
        self._runners = runners
        self._slots: dict[int, int] = {}  # the head's number of a sequence → the slot that it has here
        self._failed: set[int] = set()  # sequences of which this stage has missed a step
        self._logits: dict[
            int, tuple[int, Logits]
        ] = {}  # by sequence: number of its latest step, and its rows
        self._sampling = threading.Lock()
        self.steps, self.rows, self.layers_done = 0, 0, 0
        self.busy_seconds = 0.0

    @property
    def runner(self) -> LocalRunner:
        return self._runners.at(self._turn)

    @property
    def chunk(self) -> int:
        """Rows of a step, at most."""
        return self.runner.storage.plan.chunk

    @property
    def is_last(self) -> bool:
        return self.runner.checkpoint.is_last

    def forget(self) -> None:
        """All sequences."""
        for number in list(self._slots):
            self.apply(["free", number])

    # ── orders ────────────────────────────────────────────────────────────────────────────────────────────

    def apply(self, order: Order) -> None:
        """Orders about sequences: reset N, free N, copy FROM TO POSITION, commit N POSITION, discard N."""
        name, *rest = order
        number = rest[0]
        if name in ("reset", "free") and number in self._slots:
            self.states.free(self._slots.pop(number))
            self._failed.discard(number)
            self._logits.pop(number, None)
        if name == "reset":
            self._slots[number] = self.states.allocate()
        elif name == "copy":
            source, target, position = rest
            self.apply(["reset", target])
            self._settle(source)
            self.states.copy(self._slots[source], self._slots[target], position)
            if source in self._failed:
                self._failed.add(target)
            if source in self._logits:
                self._logits[target] = self._logits[source]
        elif name == "commit" and number not in self._failed:
            self.states.commit(self._slots[number], rest[1])
        elif name == "discard" and number in self._slots:
            self.states.discard(self._slots[number])
            self._failed.discard(number)

    def _settle(self, number: int) -> None:
        """All rows of a sequence's state are to be there."""
        runner = self._runners.loaded(self._turn)
        if runner is not None:
            runner.settle(self._slots[number])

    def process(self, message: Message) -> Message:
        """Does what a message says, and gives what goes to the next stage.  A stage that fails says so in it; those
        behind it do not do the step.  One whose device is lost can only end: it raises."""
        for order in message.fields.get("orders", ()):
            self.apply(order)
        try:
            if "error" not in message.fields:
                return self._step(message) if message.kind == "step" else self._ask(message)
        except DeviceLostError:
            raise
        except PenstockError as error:
            message.fields["error"] = [type(error).__name__, str(error), self.number]
        self._failed.update(message.fields.get("slots", ()))
        message.arrays.clear()
        return message

    def _step(self, message: Message) -> Message:
        step = self._read_step(message)
        config = self.runner.checkpoint.config
        shape, found = (step.rows, *architecture(config).boundary(config)), message.arrays["streams"]
        if found.shape != shape or found.dtype != np.float32:
            raise ClusterError(
                f"stage {self.number + 1} got {found.dtype} {found.shape}, expected float32 {shape}"
            )
        self.runner.keep_up(message.fields.get("follow", True))
        streams = self.forward(step, found)
        return self.passed_on(message, step, streams)

    def _read_step(self, message: Message) -> Step:
        slots, starts = take(message.fields, slots=list, starts=list)
        missed = self._failed.intersection(slots)
        if missed:
            raise ClusterError(f"stage {self.number + 1} has missed a step of the sequence")
        a = message.arrays
        return Step(
            a["tokens"], a["positions"], tuple(self._slots[n] for n in slots), tuple(starts), a["logits"]
        )

    def local_step(self, step: Step) -> Step:
        """A step of the head's numbers, with the slots that they have here."""
        slots = tuple(self._slots[number] for number in step.slots)
        return Step(step.tokens, step.positions, slots, step.starts, step.logits)

    def forward(
        self,
        step: Step,
        hidden: NDArray[np.float32] | None = None,
        progress: Callable[[float], None] | None = None,
    ) -> Any:
        def tell(share: float) -> None:
            self.layers_done += 1
            if progress is not None:
                progress(share)

        self.steps += 1
        self.rows += step.rows
        begin = time.perf_counter()
        found = self.runner.forward(step, hidden, tell)
        self.backend.check()
        self.busy_seconds += time.perf_counter() - begin
        return found

    def passed_on(self, message: Message, step: Step, streams: Any) -> Message:
        """What the next stage gets, or the head from the last one."""
        if not self.is_last:
            message.arrays["streams"] = self.backend.host(streams)[: step.rows]
            return message
        slots, number = message.fields["slots"], message.fields["number"]
        choices, message.arrays = list(ridden(message, self.states.layout.vocab_size)), {}
        if not len(step.logits):
            return message
        logits: Logits = np.asarray(self.runner.logits(streams, step))
        if len(logits) > HELD * len(slots):
            message.arrays["all"] = logits
            return message
        best = [Best.of(self.backend.sampling, row) for row in logits]
        message.arrays["tokens"] = np.array([each.token for each in best], np.int64)
        message.arrays["bests"] = np.array([each[1:] for each in best], np.float64)  # [rows, 2]
        with self._sampling:
            for sequence, first, end in zip(slots, step.starts, step.starts[1:], strict=False):
                rows = (step.logits >= first) & (step.logits < end)
                self._logits[sequence] = (number, logits[rows].copy())
        message.fields["chosen"] = [
            [slot, row, *choose(self.backend.sampling, self._held(slot, number, row), choice)]
            for slot, row, choice in choices
        ]
        self._draft(message, step, [each.token for each in best])
        return message

    def _draft(self, message: Message, step: Step, best: list[int]) -> None:
        """Guesses on from the likeliest tokens, best [rows that want logits], before anybody has asked.  A sequence's
        own drafts count as far as they are likeliest too, as the head will find if it does not draw others."""
        wanted = message.fields.pop("draft", None)
        if wanted is None or not self.runner.checkpoint.has_draft:
            return
        most, least = wanted
        begin, found, context = time.perf_counter(), list[list[Any]](), self.states.layout.context
        parts = zip(message.fields["slots"], step.slots, step.starts, step.starts[1:], strict=False)
        for number, slot, first, end in parts:
            at = int(np.searchsorted(step.logits, first))
            if end - first > 1 + DRAFTS or step.logits[at : at + end - first].tolist() != [
                *range(first, end)
            ]:
                continue  # it reads its prompt
            read, right = step.tokens[first + 1 : end].tolist(), 0
            while right < len(read) and best[at + right] == read[right]:
                right += 1
            token, position = best[at + right], int(step.positions[first]) + right + 1
            # Places of rings that need not count are for all of a step's drafts together.
            most_here = min(most, DRAFTS - right, context - position - 1)
            if token >= 0 and most_here > 0:
                guesses = self.runner.draft(slot, position, token, most_here, least)
                tokens, chances = [guess for guess, _ in guesses], [chance for _, chance in guesses]
                found.append([number, position, token, tokens, chances])
        message.fields["drafts"], message.fields["draft_seconds"] = found, time.perf_counter() - begin

    # ── questions ─────────────────────────────────────────────────────────────────────────────────────────

    def question(self, message: Message) -> Message:
        """About logits that are held here.  May be asked while a step runs."""
        answer = Message("answer", {"number": message.fields.get("number")})
        try:
            slot, step, row = take(message.fields, slot=int, step=int, row=int)
            logits = self._held(slot, step, row)
            if message.kind == "logits":
                answer.arrays["logits"] = logits
            else:
                choice = answered(message, len(logits))
                answer.fields |= choose(self.backend.sampling, logits, choice)._asdict()
        except ClusterError as error:
            answer.fields["error"] = ["ClusterError", str(error), self.number]
        return answer

    def _held(self, slot: int, step: int, row: int) -> Logits:
        """A row of the logits that a step gave for a sequence."""
        with self._sampling:
            held = self._logits.get(slot)
        if held is None or held[0] != step:
            raise ClusterError("these logits are gone: their sequence has gone on")
        if not 0 <= row < len(held[1]):
            raise ClusterError(f"row {row} of {len(held[1])} rows of logits")
        found: Logits = held[1][row]
        return found

    def _ask(self, message: Message) -> Message:
        """What needs an answer of all stages, one after another."""
        what, about = take(message.fields, what=str, about=list)
        answers: dict[str, Callable[..., None]] = {
            "tensors": self._tensors,
            "restore": self._restore,
            "draft_logits": self._draft_logits,
            "park": self._park,
        }
        answer = answers.get(what)
        if answer is None:
            raise ClusterError(f"stage {self.number + 1} was asked for {what!r:.40}")
        answer(message, *about)
        return message

    def _park(self, message: Message) -> None:
        del message
        self._runners.park()

    def _tensors(self, message: Message, number: int, position: int, floor: int) -> None:
        if number in self._failed:
            raise ClusterError(f"stage {self.number + 1} has missed a step of the sequence")
        self._settle(number)
        message.arrays |= self.states.tensors(self._slots[number], position, floor)

    def _restore(self, message: Message, number: int, position: int, floor: int) -> None:
        names = [series.name for series in self.states.layout.series]
        own = {name: message.arrays.pop(name) for name in names}
        self.states.restore(self._slots[number], position, floor, own)

    def _draft_logits(self, message: Message, number: int, position: int, token: int) -> None:
        if self.is_last:
            row = self.runner.draft_logits(self._slots[number], position, token)
            message.arrays["logits"] = np.asarray(row)

    # ── what others may know ──────────────────────────────────────────────────────────────────────────────

    def stats(self) -> dict[str, Any]:
        """Of this stage, in a few numbers.  Waits for nobody."""
        runner = self._runners.loaded(self._turn)
        mode = "parked" if runner is None else runner.storage.plan.mode
        found = {name: getattr(self, name) for name in ("steps", "rows", "layers_done", "busy_seconds")}
        return found | {"mode": mode, "device": self.backend.name, "sequences": len(self._slots)}
