"""The worker's side: joins a head, runs the layers that it is given, and comes back when the group broke."""

import base64
import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from penstock.cluster.agreement import Described, Terms, hello
from penstock.cluster.control import Control, NoHead, dial
from penstock.cluster.group import ASIDE, CHAIN, Addresses, Group, as_boundary, from_boundary
from penstock.cluster.machines import check_device, part_name
from penstock.cluster.measure import measure_layer
from penstock.cluster.message import Message, take
from penstock.cluster.secret import read_secret
from penstock.cluster.split import parse_layers
from penstock.cluster.stage import Stage
from penstock.engine.options import EngineOptions
from penstock.engine.planning import choose_backend, make_engine_plan, state_layout
from penstock.engine.runner import LocalRunner
from penstock.errors import ClusterError, PenstockError
from penstock.machine.memory import read_memory
from penstock.weights.checkpoint import Checkpoint

PATIENCE: Final = 60.0  # seconds without a word from a head that waits for others
PAUSES: Final = (0.2, 0.5, 1.0, 2.0)  # seconds between attempts to join
TICK: Final = 1.0  # seconds between two words about oneself


class Refused(ClusterError):
    """The head does not want this worker, and will not want it later."""


@dataclass(frozen=True)
class Place:
    """What a stage is: which one of how many, its layers and what all go by."""

    rank: int
    size: int
    layers: range
    terms: Terms


class Worker:
    """Runs some layers of `checkpoint` for the head at `host:port`.  `tell` hears what a person may want to know."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        options: EngineOptions,
        host: str,
        port: int,
        tell: Callable[[str], None],
    ):
        self.checkpoint, self.options, self._tell = checkpoint, options, tell
        self._where = host, port
        self._secret = read_secret(options.secret)
        self._layers = parse_layers(options.layers)
        self._described = Described.of(checkpoint)
        self._place: Place | None = None
        self._stage: Stage | None = None
        self._seconds = 0.0
        if self._layers is None:
            self._seconds = measure_layer(checkpoint, choose_backend(checkpoint, options))

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
                    self._tell(f"{error}; trying again until it is")
                time.sleep(PAUSES[min(tries, len(PAUSES) - 1)])
                tries += 1
                continue
            met, tries = True, 0
            self._tell(f"joined {control.there}")
            ended = Attendance(self, control).serve()
            if self._stage is not None:
                self._stage.forget()
            self._tell(ended.why)
            if ended.goodbye and once:
                return
            time.sleep(PAUSES[0])

    def hello(self) -> Message:
        loaded = None if self._place is None else self._place.layers
        memory = self.options.memory_bytes or read_memory().safe_budget()
        return Message(
            "hello", hello(self.checkpoint, self._described, self._layers, loaded, memory, self._seconds)
        )

    def stage(self, place: Place, progress: Callable[[int, int], None]) -> Stage:
        """With its weights in memory: the one from before, if it is to run the same."""
        kept = self._place is not None and replace(place, rank=0) == replace(self._place, rank=0)
        if self._stage is None or not kept:
            if self._stage is not None:
                self._stage.park()
            self._stage = self._open(place, progress)
        self._place, self._stage.number = place, place.rank
        self._stage.runner  # noqa: B018 - loads the weights
        return self._stage

    def _open(self, place: Place, progress: Callable[[int, int], None]) -> Stage:
        terms = place.terms
        options = replace(
            self.options,
            context=terms.context,
            max_rewind=terms.max_rewind,
            kv_dtype=terms.kv_dtype,
            simulate_low_precision=terms.simulate_low_precision,
            prefill_chunk=terms.chunk,
            sessions=terms.sessions,
        )
        whole = self.checkpoint if terms.draft else self.checkpoint.without_draft()
        part, name = whole.slice(place.layers), part_name(self.checkpoint, whole.slice(place.layers))
        backend = choose_backend(part, options)
        check_device(backend)
        plan, _ = make_engine_plan(part, options, backend, terms.context)
        states = backend.states(state_layout(part, options, terms.context))

        def load() -> LocalRunner:
            return LocalRunner(part, backend, states, plan, options, lambda: name, progress)

        return Stage(place.rank, backend, states, load)

    @property
    def latest_stage(self) -> Stage | None:
        return self._stage


@dataclass(frozen=True)
class Ended:
    why: str
    goodbye: bool = False


class Attendance:
    """A worker with a head, from joining to parting."""

    def __init__(self, worker: Worker, control: Control):
        self._worker, self._control = worker, control
        self._said: queue.SimpleQueue[Message | None] = queue.SimpleQueue()  # by the head; None: it is gone
        self._work: queue.SimpleQueue[Message | None] = (
            queue.SimpleQueue()
        )  # by the stage before; None: no more
        self._addresses: Addresses | None = None
        self._group: Group | None = None
        self._patience = PATIENCE
        self._why, self._goodbye = "", False
        self._gone, self._over = threading.Event(), threading.Event()  # the head is; this is

    def serve(self) -> Ended:
        control = self._control
        threads = [
            threading.Thread(target=target, name=f"penstock-{target.__name__.strip('_')}", daemon=True)
            for target in (self._hear, self._tick)
        ]
        try:
            control.send(self._worker.hello())
            for thread in threads:
                thread.start()
            self._serve()
        except ClusterError as error:
            if isinstance(error, Refused):
                raise
            self._why = self._why or str(error)
        finally:
            self._over.set()
            if self._group is not None:
                self._group.leave()
            control.close()
        return Ended(self._why or "the head is gone", self._goodbye)

    def _serve(self) -> None:
        place = self._prepare(self._next("prepare"))
        self._patience = max(place.terms.timeout, 2 * TICK)
        self._next("connect")
        assert self._addresses is not None
        host = self._worker.options.interface or self._control.here
        group = Group(self._addresses, place.rank, place.size, host, place.terms.timeout, self._broke)
        self._group, last = group, place.rank == place.size - 1
        if self._gone.is_set():  # while the stages connected
            raise ClusterError(self._why)
        following = group.outgoing((place.rank + 1) % place.size, CHAIN)
        group.incoming(place.rank - 1, CHAIN, self._work.put)
        stage = self._worker.stage(place, lambda *_: None)
        if last:
            answers = group.outgoing(0, ASIDE)
            group.incoming(0, ASIDE, lambda message: answers.send(stage.question(message)))
        self._control.send(Message("connected"))
        self._worker._tell(f"layers {place.layers.start}:{place.layers.stop} are ready")
        while (message := self._work.get()) is not None:
            if "streams" in message.arrays:
                message.arrays["streams"] = from_boundary(message.arrays["streams"])
            message = stage.process(message)
            if last:
                message.fields.pop("orders", None)
            if "streams" in message.arrays:
                message.arrays["streams"] = as_boundary(message.arrays["streams"], place.terms.boundary)
            following.send(message)

    def _next(self, kind: str) -> Message:
        message = self._said.get()
        if message is None:
            raise ClusterError(self._why or "the head is gone")
        if message.kind == "refused":
            raise Refused(f"the head refuses this worker: {message.fields.get('why')}")
        if message.kind != kind:
            raise ClusterError(f"the head says {message.kind!r:.40}, expected {kind}")
        return message

    def _prepare(self, message: Message) -> Place:
        rank, size, layers = take(message.fields, rank=int, size=int, layers=list)
        place = Place(rank, size, range(*layers), Terms.read(message.fields))
        self._addresses = Addresses(self._tell_address, place.terms.timeout)
        try:
            self._worker.stage(place, self._loading)
        except PenstockError as error:  # not enough memory for it, say: nobody else's fault
            with contextlib.suppress(ClusterError):
                self._control.send(Message("failed", {"why": str(error)}))
            raise Refused(f"layers {layers[0]}:{layers[1]} cannot run here: {error}") from None
        self._control.send(Message("ready"))
        return place

    def _loading(self, done: int, total: int) -> None:
        with contextlib.suppress(ClusterError):
            self._control.send(Message("loading", {"done": done, "total": total}))

    def _tell_address(self, key: str, value: bytes) -> None:
        self._control.send(Message("address", {"key": key, "value": base64.b64encode(value).decode()}))

    def _broke(self, reason: str) -> None:
        self._why = self._why or reason
        self._work.put(None)

    # ── threads ───────────────────────────────────────────────────────────────────────────────────────────

    def _hear(self) -> None:
        """What the head says."""
        try:
            while True:
                message = self._control.receive(self._patience)
                if message.kind == "address":
                    key, value = take(message.fields, key=str, value=str)
                    if self._addresses is not None:
                        self._addresses.learn(key, base64.b64decode(value))
                elif message.kind == "goodbye":
                    self._goodbye = True
                    raise ClusterError("the head has ended")
                elif message.kind != "tick":
                    self._said.put(message)
        except ClusterError as error:
            if not self._over.is_set():
                self._why = self._why or str(error)
            self._gone.set()
            self._said.put(None)
            if self._addresses is not None:
                self._addresses.give_up()
            if self._group is not None:
                self._group.break_up(str(error))
        except Exception:
            logging.getLogger(__name__).exception("the head said what cannot be understood")
            self._said.put(None)

    def _tick(self) -> None:
        """The head hears that this worker lives, and what it does."""
        with contextlib.suppress(ClusterError):
            while not self._over.wait(TICK):
                stage = self._worker.latest_stage
                self._control.send(Message("tick", {} if stage is None else stage.stats()))
