"""The worker's side: joins a head, runs the layers or the experts that it is given, and comes back when the group
broke."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

from penstock.cluster.agreement import Described, Terms, hello, read_layers
from penstock.cluster.attendance import Attendance, Refused
from penstock.cluster.control import Control, NoHead, dial
from penstock.cluster.group import ASIDE, CHAIN
from penstock.cluster.machines import part_name
from penstock.cluster.measure import measure_layer, memory_for_layers
from penstock.cluster.message import Message, take
from penstock.cluster.secret import read_secret
from penstock.cluster.split import Layers, parse_layers, said_layers
from penstock.cluster.stages import Stages, states_of
from penstock.engine.options import EngineOptions
from penstock.engine.planning import choose_backend, make_engine_plan
from penstock.engine.runner import LocalRunner, open_runners
from penstock.errors import ClusterError
from penstock.machine.memory import read_memory
from penstock.weights.checkpoint import Checkpoint

PAUSES: Final = (0.2, 0.5, 1.0, 2.0)  # seconds between attempts to join


class Worker(ABC):
    """Works on `checkpoint` for the head at `host:port`.  `tell` hears what a person may want to know."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        options: EngineOptions,
        host: str,
        port: int,
        tell: Callable[[str], None],
    ):
        self.checkpoint, self.options, self.tell = checkpoint, options, tell
        self._where = host, port
        self._secret = read_secret(options.secret)
        self.described = Described.of(checkpoint)
        self.memory = options.memory_bytes or read_memory().safe_budget()

    @abstractmethod
    def hello(self) -> Message:
        """What the head hears first."""

    @abstractmethod
    def attendance(self, control: Control) -> Attendance:
        """With a head that has been met."""

    def forget(self) -> None:  # noqa: B027 - not all remember anything
        """Nothing of what the head's sequences were is needed any more."""

    def run(self, once: bool = False) -> None:
        """Until the head is gone, if `once`; else for ever.  Raises Refused if the head does not want it."""
        met, tries = False, 0
        while True:
            try:
                control = dial(*self._where, self._secret)
            except ClusterError as error:
                if not met and not isinstance(error, NoHead):
                    raise Refused(str(error)) from None
                if met and once:
                    return
                if tries == 0:
                    self.tell(f"{error}; trying again until it is")
                time.sleep(PAUSES[min(tries, len(PAUSES) - 1)])
                tries += 1
                continue
            met, tries = True, 0
            self.tell(f"joined {control.there}")
            ended = self.attendance(control).serve(self.hello())
            self.forget()
            self.tell(ended.why)
            if ended.goodbye and once:
                return
            time.sleep(PAUSES[0])


@dataclass(frozen=True)
class Place:
    """What a stage is: which one of how many, its layers and what all go by."""

    rank: int
    size: int
    layers: Layers
    terms: Terms


class StageWorker(Worker):
    """Runs some layers."""

    def __init__(self, checkpoint: Checkpoint, options: EngineOptions, *more: Any):
        super().__init__(checkpoint, options, *more)
        self._layers = parse_layers(options.layers)
        self._place: Place | None = None
        self.latest: Stages | None = None
        self._seconds = 0.0
        if self._layers is None:
            one = checkpoint.slice(range(1))
            backend = choose_backend(one, options)
            self.memory, self._seconds = memory_for_layers(options, backend), measure_layer(one, backend)

    def hello(self) -> Message:
        loaded = None if self._place is None else self._place.layers
        fields = hello(self.checkpoint, self.described, self._layers, loaded, self.memory, self._seconds)
        return Message("hello", fields)

    def attendance(self, control: Control) -> Attendance:
        return StageAttendance(self, control)

    def forget(self) -> None:
        if self.latest is not None:
            self.latest.forget()

    def stages(self, place: Place, progress: Callable[[int, int], None]) -> Stages:
        """With its weights in memory: the one from before, if it is to run the same."""
        kept = self._place is not None and replace(place, rank=0) == replace(self._place, rank=0)
        if self.latest is None or not kept:
            if self.latest is not None:
                self.latest.park()
            self.latest = self._open(place, progress)
        self._place = place
        self.latest.renumber(place.rank)
        self.latest.first.runner  # noqa: B018 - loads the weights
        return self.latest

    def _open(self, place: Place, progress: Callable[[int, int], None]) -> Stages:
        terms = place.terms
        options = replace(
            self.options,
            context=terms.context,
            max_rewind=terms.max_rewind,
            kv_dtype=terms.kv_dtype,
            simulate_low_precision=terms.simulate_low_precision,
            exact=terms.exact,
            prefill_chunk=terms.chunk,
            sessions=terms.sessions,
        )
        whole = self.checkpoint if terms.draft else self.checkpoint.without_draft()
        part = whole.slice(*place.layers)
        name = part_name(self.checkpoint, part)
        backend = choose_backend(part, options)
        plan, _ = make_engine_plan(part, options, backend, terms.context)
        states = states_of(part, backend, options, terms.context, plan)

        def load() -> list[LocalRunner]:
            return open_runners(part, backend, states, plan, options, lambda: name, progress)

        return Stages(place.rank, backend, states, load, terms.boundary)


class StageAttendance(Attendance):
    """Messages come from the machine before and go to the one behind; the last one answers the head."""

    def __init__(self, worker: StageWorker, control: Control):
        super().__init__(control, worker.options.interface, worker.tell)
        self._worker = worker

    def attend(self) -> None:
        said = self.next("prepare").fields
        rank, size = take(said, rank=int, size=int)
        layers = read_layers(said, "layers")
        if layers is None:
            raise ClusterError("the head does not say which layers")
        place = Place(rank, size, layers, Terms.read(said))
        what, timeout = f"layers {said_layers(layers)}", place.terms.timeout
        self.prepare(timeout, what, lambda: self._worker.stages(place, self.loading))
        stages = self._worker.stages(place, lambda *_: None)
        self.ready(chunk=stages.first.chunk)
        group, last = self.join(rank, size, timeout), rank == size - 1
        following = group.outgoing((rank + 1) % size, CHAIN)
        group.incoming(rank - 1, CHAIN, self.work.put)
        if last:
            answers = group.outgoing(0, ASIDE)
            group.incoming(0, ASIDE, lambda message: answers.send(stages.last.question(message)))
        self.control.send(Message("connected"))
        self.tell(f"{what} are ready")
        while (message := self.work.get()) is not None:
            following.send(stages.process(message))

    def stats(self) -> dict[str, Any]:
        stages = self._worker.latest
        return {} if stages is None else stages.stats()
