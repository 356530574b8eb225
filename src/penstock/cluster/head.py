"""The head's side: takes workers in, makes a group of them, and makes it again when it broke."""

import base64
import contextlib
import logging
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from penstock.cluster.agreement import Described, Hello, Terms, check
from penstock.cluster.control import Control
from penstock.cluster.door import Door
from penstock.cluster.group import Addresses, Group
from penstock.cluster.helpers import Helpers
from penstock.cluster.members import Member, Tiling, agree_on_rows
from penstock.cluster.message import Message, take
from penstock.cluster.secret import read_secret
from penstock.cluster.split import parse_layers, said_layers
from penstock.engine.options import EngineOptions
from penstock.errors import ClusterError
from penstock.weights.checkpoint import Checkpoint

TICK: Final = 1.0  # seconds between two words to each worker
SILENCE: Final = 60.0  # seconds without a word of a worker while there is no group


class Head:
    """Listens from the beginning; `start` begins to make groups.  `on_up` is called with each new one, and `on_down`
    with the reason when it broke."""

    def __init__(self, checkpoint: Checkpoint, options: EngineOptions):
        assert options.cluster is not None
        self.checkpoint, self.options = checkpoint, options
        self.stages = options.stages
        self.tiling = Tiling(checkpoint, self.stages, parse_layers(options.layers))
        self.helpers = Helpers(checkpoint, options.interface) if self.stages == 1 else None
        self._described = Described.of(checkpoint)
        self._changed = threading.Condition()
        self.members: list[Member] = []
        self._terms: Terms | None = None
        self._group: Group | None = None
        self._addresses: Addresses | None = None
        self._connecting = self._closed = False
        self.epochs = 0
        self.why_down = "no worker has come yet"
        self.on_up: Callable[[Group], None] = lambda _: None
        self.on_down: Callable[[str], None] = lambda _: None
        self.memory, self.layer_seconds = (
            0,
            0.0,
        )  # bytes for layers, and seconds of a token in one; 0: not known
        self.chunk = 0  # rows of a step that all stages take, once they have told
        self._door = Door(options.cluster, read_secret(options.secret), self._welcome)
        self.address = self._door.address

    # ── for the engine ────────────────────────────────────────────────────────────────────────────────────

    def start(self, terms: Terms) -> None:
        """Takes workers in and makes groups from now on."""
        with self._changed:
            self._terms = terms
            self._changed.notify_all()
        host, port = self.address
        log = logging.getLogger(__name__)
        threading.Thread(target=self._tick, name="penstock-cluster", daemon=True).start()
        if self.helpers is not None:
            log.info("expert workers may join at %s:%d", host, port)
            self.helpers.start(terms)
        else:
            log.info("waiting for %d workers at %s:%d", self.stages - 1, host, port)
            threading.Thread(target=self._keep_up, name="penstock-cluster", daemon=True).start()

    def own_part(self) -> Checkpoint:
        """The head's layers.  Waits until it is known what the others run."""
        if self.stages == 1:
            return self.checkpoint
        with self._changed:
            while not self.tiling.tiles:
                if self._closed:
                    raise ClusterError("the cluster is closed")
                self._changed.wait(0.5)
            return self.checkpoint.slice(*self.tiling.head)

    def wait(self, tell: Callable[[int, int], None] | None = None) -> None:
        """Until all stages are ready."""
        with self._changed:
            while self._group is None and self.stages > 1:
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
        """The workers: by stage, and those that compute experts.  Waits for nobody."""
        if self.helpers is not None:
            return self.helpers.stats()
        return [{"stage": number} | member.as_dict() for number, member in enumerate(list(self.members), 1)]

    def progress(self) -> int:
        """Grows while any worker gets anywhere."""
        return sum(int(member.stats.get("layers_done", 0)) for member in list(self.members))

    def close(self) -> None:
        """The workers hear that the head has gone."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            # Who is just about to connect to the others could not hear it, and would wait for them.
            self._changed.wait_for(lambda: not self._connecting)
            members, group = [*self.members, *self._helping()], self._group
        for member in members:
            with contextlib.suppress(ClusterError):
                member.control.send(Message("goodbye"))
        if group is not None:
            group.leave()
        if self.helpers is not None:
            self.helpers.close()
        for member in members:
            member.control.close()
        self._door.close()

    def _helping(self) -> list[Member]:
        return [] if self.helpers is None else self.helpers.members()

    # ── who comes ─────────────────────────────────────────────────────────────────────────────────────────

    def _welcome(self, control: Control) -> None:
        """Somebody who knows the secret: until he is gone."""
        try:
            member = self._greet(control)
        except ClusterError as error:
            logging.getLogger(__name__).warning("%s", error)
            with contextlib.suppress(ClusterError):
                control.send(Message("refused", {"why": str(error)}))
            control.close()
            return
        try:
            while True:
                message = control.receive(self._patience)
                member.hear(message)
                if message.kind == "address":
                    self._pass_on(member, message)
        except ClusterError as error:
            self._lose(member, str(error))

    def _greet(self, control: Control) -> Member:
        """Takes a worker in, or raises why not."""
        message = control.receive(SILENCE)
        if message.kind != "hello":
            raise ClusterError(f"{control.there}: {message.kind!r:.40}, expected a greeting")
        said = Hello.read(message.fields)
        check(self._described, self.checkpoint.has_draft, said)
        member = Member(control, said)
        if self._closed:
            raise ClusterError("the head is about to end")
        if said.share is not None:
            return self._greet_helper(member)
        if self.stages == 1:
            raise ClusterError("the head runs all layers itself; --stages says how many machines share them")
        with self._changed:
            self._changed.wait_for(lambda: self._terms is not None or self._closed)  # it knows itself by then
            if len(self.members) >= self.stages - 1:
                raise ClusterError(f"all {self.stages} stages are here already")
            if len(self.members) == self.stages - 2:  # the last one: does it fit with the others?
                self.tiling.assign([*self.members, member], self.memory, self.layer_seconds)
            self.members.append(member)
            self._changed.notify_all()
        here = f"{1 + len(self.members)} of {self.stages} stages are here"
        logging.getLogger(__name__).info("worker %s has joined: %s", member.name, here)
        return member

    def _greet_helper(self, member: Member) -> Member:
        if self.helpers is None:
            raise ClusterError(
                "the head shares its layers; expert workers help one that has them all, --stages 1"
            )
        self.helpers.join(member)
        logging.getLogger(__name__).info("expert worker %s has joined", member.name)
        return member

    @property
    def _patience(self) -> float:
        running = self._group is not None or self.stages == 1
        return self._terms.timeout if self._terms is not None and running else SILENCE

    def _pass_on(self, member: Member, message: Message) -> None:
        """Where a member listens, to all others."""
        if self.helpers is not None:
            self.helpers.hear(member, message)
            return
        key, value = take(message.fields, key=str, value=str)
        if self._addresses is not None:
            self._addresses.learn(key, base64.b64decode(value))
        for other in list(self.members):
            if other is not member:
                other.control.send(message)

    def _lose(self, member: Member, why: str) -> None:
        failure = member.lose(why)
        if self.helpers is not None:
            self.helpers.lose(member)
        with self._changed:
            if member in self.members:
                self.members.remove(member)
            if not self._closed:
                self.why_down = failure
                logging.getLogger(__name__).warning("%s", failure)
            group = self._group
            self._changed.notify_all()
        if self._addresses is not None:
            self._addresses.give_up()
        if group is not None:
            group.break_up(failure)

    def _tick(self) -> None:
        """Workers hear that the head lives."""
        while not self._closed:
            time.sleep(TICK)
            for member in [*self.members, *self._helping()]:
                with contextlib.suppress(ClusterError):
                    member.control.send(Message("tick", {"sent": time.monotonic()}))

    # ── groups ────────────────────────────────────────────────────────────────────────────────────────────

    def _keep_up(self) -> None:
        while not self._closed:
            with self._changed:
                if self._group is not None or len(self.members) < self.stages - 1:
                    self._changed.wait(1.0)
                    continue
                members = sorted(self.members, key=lambda m: m.layers[0].start)
                self.members = list(members)  # who is lost leaves this one, and is missed in the other
            try:
                self._make_group(members)
            except ClusterError as error:
                self.why_down = str(error)
                logging.getLogger(__name__).warning("%s", error)
                self._send_home(members)
            finally:
                with self._changed:
                    self._connecting = False
                    self._changed.notify_all()

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
            self.tiling.fix(members)
            self._changed.notify_all()
        for rank, member in enumerate(members, 1):
            place = {"rank": rank, "size": self.stages, "layers": said_layers(member.layers)}
            member.control.send(Message("prepare", place | terms.fields()))
        for member in members:
            member.wait(member.ready)
        self.chunk = agree_on_rows(members, terms.chunk, self.chunk)
        with self._changed:
            if self._closed:
                return
            self._connecting = True
        self._addresses = Addresses(lambda key, value: self._tell_all(members, key, value), terms.timeout)
        for member in members:
            member.control.send(Message("connect"))
        host = self.options.interface or members[0].control.here
        group = Group(self._addresses, 0, self.stages, host, terms.timeout, self._down)
        try:
            for member in members:
                member.wait(member.connected)
        except ClusterError as error:
            group.break_up(str(error))
            raise
        self.epochs += 1
        self.on_up(group)
        with self._changed:
            if group.broken is not None:
                raise ClusterError(group.broken)
            self._group = group

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
