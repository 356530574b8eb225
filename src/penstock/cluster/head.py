"""The head's side: waits for workers, agrees with them, makes the group, and makes it again when it broke."""

import base64
import contextlib
import logging
import socket
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from penstock.cluster.agreement import Described, Hello, Terms, check
from penstock.cluster.control import Control, Doorkeeper
from penstock.cluster.group import Addresses, Group
from penstock.cluster.message import Message, take
from penstock.cluster.secret import read_secret
from penstock.cluster.split import Machine, parse_layers, split
from penstock.engine.options import EngineOptions
from penstock.errors import ClusterError, OptionError
from penstock.machine.memory import read_memory
from penstock.weights.checkpoint import Checkpoint

TICK: Final = 1.0  # seconds between two words to each worker
STRANGERS: Final = 32  # connections at a time that have not proved anything yet
JOINING: Final = 600.0  # seconds without a word of a worker that loads weights


class Member:
    """A worker that is here."""

    def __init__(self, control: Control, said: Hello):
        self.control, self.said = control, said
        self.name = f"{said.name} ({control.there})"
        self.layers = range(0)
        self.ready = threading.Event()
        self.failure: str | None = None
        self.loaded = (0, 0)  # bytes, and in all
        self.stats: dict[str, Any] = {}
        self.heard = time.monotonic()


class Head:
    """Listens from the beginning; `start` begins to make groups.  `on_up` is called with each new one, and `on_down`
    with the reason when it broke."""

    def __init__(self, checkpoint: Checkpoint, options: EngineOptions):
        assert options.cluster is not None
        self.checkpoint, self.options = checkpoint, options
        self.stages = options.stages
        self._own = parse_layers(options.layers)
        self._described = Described.of(checkpoint)
        self._host, port = parse_address(options.cluster, "cluster")
        self._door = Doorkeeper(read_secret(options.secret))
        self._listener = _listen(self._host, port)
        self.address: tuple[str, int] = self._listener.getsockname()[:2]
        self._strangers = threading.Semaphore(STRANGERS)
        self._changed = threading.Condition()
        self.members: list[Member] = []
        self._tiles: list[range] = []  # by stage, once it is known
        self._terms: Terms | None = None
        self._group: Group | None = None
        self._addresses: Addresses | None = None
        self._closed = False
        self.epochs = 0
        self.why_down = "no worker has come yet"
        self.on_up: Callable[[Group], None] = lambda _: None
        self.on_down: Callable[[str], None] = lambda _: None
        self.layer_seconds = 0.0
        threading.Thread(target=self._accept, name="penstock-cluster-door", daemon=True).start()

    # ── for the engine ────────────────────────────────────────────────────────────────────────────────────

    def likely_layers(self) -> range:
        """Those of the head, as far as can be said before the others are here."""
        if self._own is not None:
            return self._own
        return range(max(1, self.checkpoint.config.layer_count // self.stages))

    @property
    def own_layers(self) -> range:
        return self._tiles[0] if self._tiles else self.likely_layers()

    def start(self, terms: Terms) -> None:
        """Makes groups from now on."""
        self._terms = terms
        host, port = self.address
        logging.getLogger(__name__).info("waiting for %d workers at %s:%d", self.stages - 1, host, port)
        for target in (self._keep_up, self._tick):
            threading.Thread(target=target, name="penstock-cluster", daemon=True).start()

    def own_part(self) -> Checkpoint:
        """The head's layers.  Waits until it is known what the others run."""
        with self._changed:
            while not self._tiles:
                if self._closed:
                    raise ClusterError("the cluster is closed")
                self._changed.wait(0.5)
            return self.checkpoint.slice(self._tiles[0])

    def wait(self, tell: Callable[[int, int], None] | None = None) -> None:
        """Until all stages are ready."""
        with self._changed:
            while self._group is None:
                if self._closed:
                    raise ClusterError("the cluster is closed")
                if tell is not None and self.members:
                    tell(*map(sum, zip(*(member.loaded for member in self.members), strict=True)))
                self._changed.wait(0.5)

    def why(self) -> str:
        """Why there is no group."""
        here = f"{1 + len(self.members)} of {self.stages} stages are here"
        return f"the cluster waits for its workers, {here}: {self.why_down}"

    def stats(self) -> list[dict[str, Any]]:
        """The workers, by stage.  Waits for nobody."""
        now = time.monotonic()
        return [
            {
                "stage": number,
                "name": member.said.name,
                "address": member.control.there,
                "layers": [member.layers.start, member.layers.stop],
                "seen_seconds_ago": round(now - member.heard, 1),
                **member.stats,
            }
            for number, member in enumerate(list(self.members), 1)
        ]

    def progress(self) -> int:
        """Grows while any worker gets anywhere."""
        return sum(int(member.stats.get("layers_done", 0)) for member in list(self.members))

    def close(self) -> None:
        """The workers hear that the head has gone."""
        with self._changed:
            self._closed = True
            members, group = list(self.members), self._group
            self._changed.notify_all()
        for member in members:
            with contextlib.suppress(ClusterError):
                member.control.send(Message("goodbye"))
        if group is not None:
            group.leave()
        for member in members:
            member.control.close()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    # ── who comes ─────────────────────────────────────────────────────────────────────────────────────────

    def _accept(self) -> None:
        while not self._closed:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                time.sleep(0.1)  # no descriptors left, perhaps, or closed
                continue
            if not self._strangers.acquire(blocking=False):
                connection.close()
                continue
            threading.Thread(
                target=self._meet, args=(connection,), name="penstock-worker", daemon=True
            ).start()

    def _meet(self, connection: socket.socket) -> None:
        try:
            control = self._door.admit(connection)
        finally:
            self._strangers.release()
        if control is None:
            return
        try:
            member = self._greet(control)
        except ClusterError as error:
            logging.getLogger(__name__).warning("%s", error)
            with contextlib.suppress(ClusterError):
                control.send(Message("refused", {"why": str(error)}))
            control.close()
            return
        self._listen_to(member)

    def _greet(self, control: Control) -> Member:
        """Takes a worker in, or raises why not."""
        message = control.receive(JOINING)
        if message.kind != "hello":
            raise ClusterError(f"{control.there}: {message.kind!r:.40}, expected a greeting")
        said = Hello.read(message.fields)
        check(self._described, self.checkpoint.has_mtp, said)
        member = Member(control, said)
        with self._changed:
            if self._closed:
                raise ClusterError("the head is about to end")
            if len(self.members) >= self.stages - 1:
                raise ClusterError(f"all {self.stages} stages are here already")
            if len(self.members) == self.stages - 2:  # the last one: does it fit with the others?
                self._tile([*self.members, member])
            self.members.append(member)
            self._changed.notify_all()
        here = f"{1 + len(self.members)} of {self.stages} stages are here"
        logging.getLogger(__name__).info("worker %s has joined: %s", member.name, here)
        return member

    def _tile(self, members: list[Member]) -> None:
        """Orders the members by their layers.  As it was before, if the cluster was there before."""
        if self._tiles:
            self._tile_again(members)
            return
        own = Machine("the head", self._own, _memory(self.options), self.layer_seconds)
        others = [
            Machine(
                said.name,
                None if said.layers is None else range(*said.layers),
                said.memory,
                said.layer_seconds,
            )
            for said in (member.said for member in members)
        ]
        tiles = split([own, *others], layer_bytes(self.checkpoint))
        for number, layers in tiles:
            if number:
                members[number - 1].layers = layers

    def _tile_again(self, members: list[Member]) -> None:
        free = self._tiles[1:]
        for member in sorted(members, key=lambda m: m.said.layers is None and m.said.loaded is None):
            wanted = member.said.layers or member.said.loaded
            fits = [layers for layers in free if wanted == [layers.start, layers.stop]]
            if not fits and member.said.layers is not None:
                missing = ", ".join(f"{layers.start}:{layers.stop}" for layers in free)
                first, end = member.said.layers
                raise ClusterError(
                    f"worker {member.said.name} is to run layers {first}:{end}, and what is missing is {missing}"
                )
            member.layers = (fits or free)[0]
            free.remove(member.layers)

    def _listen_to(self, member: Member) -> None:
        """Until the worker is gone."""
        try:
            while True:
                message = member.control.receive(JOINING if self._group is None else self._patience)
                member.heard = time.monotonic()
                self._hear(member, message)
        except ClusterError as error:
            self._lose(member, str(error))

    @property
    def _patience(self) -> float:
        return self._terms.timeout if self._terms is not None else JOINING

    def _hear(self, member: Member, message: Message) -> None:
        if message.kind == "tick":
            member.stats = message.fields
        elif message.kind == "loading":
            done, total = take(message.fields, done=int, total=int)
            member.loaded = (done, total)
        elif message.kind == "ready":
            member.ready.set()
        elif message.kind == "failed":
            (why,) = take(message.fields, why=str)
            raise ClusterError(why)
        elif message.kind == "address":
            key, value = take(message.fields, key=str, value=str)
            if self._addresses is not None:
                self._addresses.learn(key, base64.b64decode(value))
            for other in list(self.members):
                if other is not member:
                    other.control.send(message)

    def _lose(self, member: Member, why: str) -> None:
        member.failure = f"worker {member.name}: {why}"
        member.ready.set()
        member.control.close()
        with self._changed:
            if member in self.members:
                self.members.remove(member)
            if not self._closed:
                self.why_down = member.failure
                logging.getLogger(__name__).warning("%s", member.failure)
            group = self._group
            self._changed.notify_all()
        if self._addresses is not None:
            self._addresses.give_up()
        if group is not None:
            group.break_up(member.failure)

    def _tick(self) -> None:
        """Workers hear that the head lives."""
        while not self._closed:
            time.sleep(TICK)
            for member in list(self.members):
                with contextlib.suppress(ClusterError):
                    member.control.send(Message("tick"))

    # ── groups ────────────────────────────────────────────────────────────────────────────────────────────

    def _keep_up(self) -> None:
        while not self._closed:
            with self._changed:
                if self._group is not None or len(self.members) < self.stages - 1:
                    self._changed.wait(1.0)
                    continue
                members = sorted(self.members, key=lambda m: m.layers.start)
                self.members = members
            try:
                self._make_group(members)
            except ClusterError as error:
                self.why_down = str(error)
                logging.getLogger(__name__).warning("%s", error)
                self._send_home(members)

    def _send_home(self, members: list[Member]) -> None:
        """They come again."""
        for member in members:
            member.control.close()
        with self._changed:
            self.members = [member for member in self.members if member not in members]

    def _make_group(self, members: list[Member]) -> None:
        terms = self._terms
        assert terms is not None
        with self._changed:
            if not self._tiles:
                self._tiles = [range(members[0].layers.start), *(member.layers for member in members)]
                self._changed.notify_all()
        for rank, member in enumerate(members, 1):
            place = {"rank": rank, "size": self.stages, "layers": [member.layers.start, member.layers.stop]}
            member.control.send(Message("prepare", place | terms.fields()))
        for member in members:
            member.ready.wait()
            if member.failure is not None:
                raise ClusterError(member.failure)
        self._addresses = Addresses(lambda key, value: self._tell_all(members, key, value), terms.timeout)
        for member in members:
            member.control.send(Message("connect"))
        host = self.options.interface or members[0].control.here
        group = Group(self._addresses, 0, self.stages, host, terms.timeout, self._down)
        self.epochs += 1
        self.on_up(group)
        with self._changed:
            if group.broken is not None:
                raise ClusterError(group.broken)
            self._group = group
            self._changed.notify_all()

    def _tell_all(self, members: list[Member], key: str, value: bytes) -> None:
        told = Message("address", {"key": key, "value": base64.b64encode(value).decode()})
        for member in members:
            member.control.send(told)

    def _down(self, reason: str) -> None:
        """The group broke: whoever is still here begins anew."""
        with self._changed:
            self.why_down, self._group = reason, None
            members = list(self.members)
            self.members = []
            self._changed.notify_all()
        self.on_down(reason)
        for member in members:
            member.control.close()


def layer_bytes(checkpoint: Checkpoint) -> list[int]:
    """Of each layer's weights."""
    found = [0] * checkpoint.config.layer_count
    for name, info in checkpoint.index.items():
        if name.startswith("blk."):
            found[int(name.split(".")[1])] += info.total_bytes
    return found


def _memory(options: EngineOptions) -> int:
    return options.memory_bytes or read_memory().safe_budget()


def parse_address(text: str, name: str) -> tuple[str, int]:
    """ "host:port", "[::1]:port" """
    host, colon, port = text.rpartition(":")
    if not (colon and host and port.isdecimal() and int(port) < 1 << 16):
        raise OptionError(f"{name} is {text!r}, expected HOST:PORT, such as 192.168.1.10:7600")
    return host.strip("[]"), int(port)


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=64)
    except OSError as error:
        raise OptionError(f"cluster: cannot listen on {host}:{port}: {error.strerror or error}") from None
