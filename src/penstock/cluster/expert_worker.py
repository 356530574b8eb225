"""A worker that computes routed experts alone: some of every layer, from its own memory, for a head with the rest."""

import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from penstock.backend import open_backend
from penstock.backend.base import Backend, Vector
from penstock.backend.device import DeviceBackend
from penstock.cluster.agreement import Terms, hello
from penstock.cluster.attendance import Attendance
from penstock.cluster.control import Control
from penstock.cluster.group import CHAIN
from penstock.cluster.measure import memory_for_layers
from penstock.cluster.message import Message, take
from penstock.cluster.worker import Worker
from penstock.engine.options import EngineOptions
from penstock.errors import ClusterError, DeviceLostError, OptionError, PenstockError
from penstock.model import architecture
from penstock.storage.page_cache import Bringing
from penstock.storage.source import PARTS
from penstock.weights.checkpoint import Checkpoint
from penstock.weights.files import MappedFile


class ExpertWorker(Worker):
    """share: of the experts of every layer, at most; 0: as many as its memory holds."""

    def __init__(self, checkpoint: Checkpoint, options: EngineOptions, *more: Any, share: float = 0.0):
        super().__init__(checkpoint, options, *more)
        self._share = share
        # On a card only if that was said: most machines that have one want it for more.
        self._device = "cpu" if options.device == "auto" else options.device
        if self._device != "cpu":
            self.memory = memory_for_layers(options, self._open())
        self.latest: HeldExperts | None = None

    def hello(self) -> Message:
        fields = hello(self.checkpoint, self.described, None, None, self.memory, 0.0, self._share)
        return Message("hello", fields)

    def attendance(self, control: Control) -> Attendance:
        return ExpertAttendance(self, control)

    def hold(self, numbers: range, terms: Terms) -> "HeldExperts":
        """The ones from before, if they are the same."""
        if self.latest is None or (self.latest.numbers, self.latest.terms) != (numbers, terms):
            whole = self.checkpoint if terms.draft else self.checkpoint.without_draft()
            self.latest = None  # its memory may be needed
            self.latest = HeldExperts(whole, self._open(terms.simulate_low_precision), numbers, terms)
        return self.latest

    def _open(self, low_precision: bool = False) -> Backend:
        return open_backend(self._device, self.options.thread_count, low_precision)


class HeldExperts:
    """Experts with these numbers, of every layer."""

    def __init__(self, checkpoint: Checkpoint, backend: Backend, numbers: range, terms: Terms):
        self.numbers, self.terms, self._backend, self.device = numbers, terms, backend, backend.name
        self._blocks, self._shape = (
            set(checkpoint.blocks),
            (checkpoint.config.hidden, checkpoint.config.experts),
        )
        self._experts = architecture(checkpoint.config).routed_experts(checkpoint, backend, numbers)
        on_host = not isinstance(backend, DeviceBackend)
        self._bringing = Bringing(list(extents(checkpoint, numbers))) if on_host else None
        self.steps = self.rows = 0
        self.busy_seconds = 0.0

    def compute(self, message: Message) -> Message:
        """Terms of the rows and slots whose ids are among the numbers, one after another."""
        answer = Message("terms", {"number": message.fields.get("number")})
        begin = time.perf_counter()
        try:
            answer.arrays["terms"] = self._terms(message)
            self._backend.check()
        except DeviceLostError:
            raise  # it can only end
        except PenstockError as error:
            answer.fields["error"] = str(error)
        self.busy_seconds += time.perf_counter() - begin
        return answer

    def _terms(self, message: Message) -> Vector:
        (block,) = take(message.fields, block=str)
        (hidden, nobody), a = self._shape, message.arrays
        x, ids, weights = a.get("x"), a.get("ids"), a.get("weights")
        if block not in self._blocks or x is None or ids is None or weights is None:
            raise ClusterError(f"experts of {block!r:.40} were asked for, without rows or of no layer")
        mine = ids != nobody
        if (
            x.shape != (len(ids), hidden)
            or ids.shape != weights.shape
            or not (x.dtype == weights.dtype == np.float32 and ids.dtype == np.int64)
            or not np.isin(ids[mine], np.array(self.numbers)).all()
        ):
            raise ClusterError(f"experts were asked for with {x.shape}, {ids.shape} and {weights.shape}")
        self.steps += 1
        self.rows += int(mine.sum())
        return self._experts.terms(block, x, ids, weights)


def extents(checkpoint: Checkpoint, numbers: range) -> Iterator[tuple[MappedFile, int, int]]:
    """Where in the files these experts lie."""
    for block in checkpoint.blocks:
        for part in PARTS:
            for number in numbers:
                info = checkpoint.expert(block, number, part)
                yield info.file, info.offset, info.offset + info.nbytes


class ExpertAttendance(Attendance):
    """One message for each layer of a step, and one back."""

    def __init__(self, worker: ExpertWorker, control: Control):
        super().__init__(control, worker.options.interface, worker.tell)
        self._worker = worker

    def attend(self) -> None:
        said = self.next("prepare").fields
        first, end = take(said, first=int, end=int)
        numbers, terms = range(first, end), Terms.read(said)
        what = f"experts {first}:{end} of every layer"
        self.prepare(terms.timeout, what, lambda: self._worker.hold(numbers, terms))
        self.ready()
        held, group = self._worker.hold(numbers, terms), self.join(1, 2, terms.timeout)
        answers = group.outgoing(0, CHAIN)
        group.incoming(0, CHAIN, self.work.put)
        self.control.send(Message("connected"))
        self.tell(f"{what} are ready")
        while (message := self.work.get()) is not None:
            answers.send(held.compute(message))

    def stats(self) -> dict[str, Any]:
        held = self._worker.latest
        if held is None:
            return {}
        found = {name: getattr(held, name) for name in ("steps", "rows", "busy_seconds")}
        return found | {"device": held.device}


def parse_share(text: str, name: str) -> float:
    """ "auto" → 0; else a number above 0 and up to 1, or a percentage: "40%" """
    if text == "auto":
        return 0.0
    try:
        share = float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        share = 0.0
    if not 0 < share <= 1:
        raise OptionError(f"{name} is {text!r}, expected auto, or a share such as 0.4 or 40%")
    return share
