"""The workers that are here: who they are, and which layers each of them runs."""

import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from penstock.cluster.agreement import Hello
from penstock.cluster.control import Control
from penstock.cluster.message import Message, take
from penstock.cluster.split import Layers, Machine, layer_bytes, model_head_layers, said_layers, split
from penstock.errors import ClusterError
from penstock.weights.checkpoint import Checkpoint


class Member:
    """A worker that is here, and what it has told."""

    def __init__(self, control: Control, said: Hello):
        self.control, self.said = control, said
        self.name = f"{said.name} ({control.there})"
        self.layers: Layers = ()
        self.ready, self.connected = threading.Event(), threading.Event()  # has its weights; is in the group
        self.failure: str | None = None
        self.loaded = (0, 0)  # bytes, and in all
        self.chunk: int | None = None  # rows of a step that it takes, once it is ready
        self.stats: dict[str, Any] = {}
        self.heard = time.monotonic()
        self.round_trip: float | None = None  # seconds of a word there and back

    def hear(self, message: Message) -> None:
        """What it says of itself."""
        self.heard = time.monotonic()
        if message.kind == "tick":
            self.stats = message.fields
        elif message.kind == "echo":
            (sent,) = take(message.fields, sent=float)
            self.round_trip = max(0.0, self.heard - sent)
        elif message.kind == "loading":
            done, total = take(message.fields, done=int, total=int)
            self.loaded = (done, total)
        elif message.kind == "ready":
            self.chunk = message.fields.get("chunk")
            self.ready.set()
        elif message.kind == "connected":
            self.connected.set()
        elif message.kind == "failed":
            (why,) = take(message.fields, why=str)
            raise ClusterError(why)

    def wait(self, event: threading.Event) -> None:
        """Raises ClusterError if the worker is lost before that."""
        event.wait()
        if self.failure is not None:
            raise ClusterError(self.failure)

    def lose(self, why: str) -> str:
        """Nobody waits for it any more."""
        self.failure = f"worker {self.name}: {why}"
        self.ready.set()
        self.connected.set()
        self.control.close()
        return self.failure

    def as_dict(self) -> dict[str, Any]:
        return {
            "name": self.said.name,
            "address": self.control.there,
            "layers": said_layers(self.layers),
            "seen_seconds_ago": round(time.monotonic() - self.heard, 1),
            **({} if self.round_trip is None else {"round_trip_seconds": self.round_trip}),
            **self.stats,
        }


def agree_on_rows(members: Sequence[Member], most: int, agreed: int) -> int:
    """Rows of a step that all take: `most`, or as few as some device takes.  What has been agreed once (0: nothing)
    stays; who takes less is refused."""
    for member in members:
        (rows,) = take({"chunk": member.chunk}, chunk=int)
        if rows < agreed:
            why = f"it takes {rows} tokens in a step, and the cluster has {agreed}; prefill_chunk of the head"
            with suppress(ClusterError):
                member.control.send(Message("refused", {"why": why}))
            raise ClusterError(f"worker {member.name}: {why}")
        most = min(most, rows)
    return agreed or most


class Tiling:
    """Which layers each stage runs.  Once it is made it stays, whoever comes and goes."""

    def __init__(self, checkpoint: Checkpoint, stages: int, own: Layers | None):
        self._checkpoint, self._stages, self._own = checkpoint, stages, own
        likely = range(max(1, checkpoint.config.layer_count // stages))
        self.head = own or (
            likely,
        )  # the layers of the head, as far as can be said before the others are here
        self.tiles: list[Layers] = []  # by stage, once all are known

    def assign(self, members: Sequence[Member], memory: int, layer_seconds: float) -> None:
        """Gives each member its layers.  memory, layer_seconds: of the head.  Raises ClusterError if what they are to
        run does not make up the model."""
        if self.tiles:
            self._assign_again(members)
            return
        machines = [Machine("the head", self._own, memory, layer_seconds)]
        for said in (member.said for member in members):
            machines.append(Machine(said.name, said.layers, said.memory, said.layer_seconds))
        for number, layers in split(
            machines, layer_bytes(self._checkpoint), model_head_layers(self._checkpoint)
        ):
            if number:
                members[number - 1].layers = layers
            else:
                self.head = layers

    def fix(self, members: Sequence[Member]) -> None:
        """From now on it is as these members have it, who are in the order of their layers."""
        if not self.tiles:
            self.tiles = [self.head, *(member.layers for member in members)]

    def _assign_again(self, members: Sequence[Member]) -> None:
        free = self.tiles[1:]
        for member in sorted(members, key=lambda m: m.said.layers is None and m.said.loaded is None):
            wanted = member.said.layers or member.said.loaded
            fits = [layers for layers in free if wanted == layers]
            if not fits and member.said.layers is not None:
                said, missing = said_layers(member.said.layers), " or ".join(map(said_layers, free))
                raise ClusterError(
                    f"worker {member.said.name} is to run layers {said}, and what is missing is {missing}"
                )
            member.layers = (fits or free)[0]
            free.remove(member.layers)
