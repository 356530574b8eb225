"""A worker with a head, from joining to parting: what both kinds of workers do alike."""

import base64
import contextlib
import logging
import queue
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from penstock.cluster.control import Control
from penstock.cluster.group import Addresses, Group
from penstock.cluster.message import Message, take
from penstock.errors import ClusterError, PenstockError

PATIENCE: Final = 60.0  # seconds without a word from a head that waits for others
TICK: Final = 1.0  # seconds between two words about oneself


class Refused(ClusterError):
    """The head does not want this worker, and will not want it later."""


@dataclass(frozen=True)
class Ended:
    why: str
    goodbye: bool = False


class Attendance(ABC):
    """`attend` says what is done between the greeting and the end."""

    def __init__(self, control: Control, interface: str | None, tell: Callable[[str], None]):
        self.control, self.tell = control, tell
        self._interface = interface or control.here
        self._said: queue.SimpleQueue[Message | None] = queue.SimpleQueue()  # by the head; None: it is gone
        self.work: queue.SimpleQueue[Message | None] = queue.SimpleQueue()  # of the group; None: no more
        self._addresses: Addresses | None = None
        self._group: Group | None = None
        self._patience = PATIENCE
        self._why, self._goodbye = "", False
        self._gone, self._over = threading.Event(), threading.Event()  # the head is; this is

    @abstractmethod
    def attend(self) -> None:
        """Until there is no more work."""

    @abstractmethod
    def stats(self) -> dict[str, Any]:
        """What the head hears with every tick."""

    def serve(self, hello: Message) -> Ended:
        """Greets the head and attends to it.  Raises Refused if it does not want this worker."""
        threads = [
            threading.Thread(target=target, name=f"penstock-{target.__name__.strip('_')}", daemon=True)
            for target in (self._hear, self._tick)
        ]
        try:
            self.control.send(hello)
            for thread in threads:
                thread.start()
            self.attend()
            self._gone.wait(TICK)  # a head that ends says so on this connection, and the group may be faster
        except ClusterError as error:
            if isinstance(error, Refused):
                raise
            self._why = self._why or str(error)
        finally:
            self._over.set()
            if self._group is not None:
                self._group.leave()
            self.control.close()
        return Ended(self._why or "the head is gone", self._goodbye)

    # ── for who attends ───────────────────────────────────────────────────────────────────────────────────

    def next(self, kind: str) -> Message:
        """What the head says next, which is to be of this kind."""
        message = self._said.get()
        if message is None:
            raise ClusterError(self._why or "the head is gone")
        if message.kind == "refused":
            raise Refused(f"the head refuses this worker: {message.fields.get('why')}")
        if message.kind != kind:
            raise ClusterError(f"the head says {message.kind!r:.40}, expected {kind}")
        return message

    def prepare(self, timeout: float, what: str, load: Callable[[], Any]) -> None:
        """Loads what it takes.  Raises Refused, and tells the head, if that cannot be."""
        self._addresses = Addresses(self._tell_address, timeout)
        try:
            load()
        except PenstockError as error:  # not enough memory for it, say: nobody else's fault
            with contextlib.suppress(ClusterError):
                self.control.send(Message("failed", {"why": str(error)}))
            raise Refused(f"{what} cannot run here: {error}") from None
        self._patience = max(timeout, 2 * TICK)

    def ready(self, **fields: Any) -> None:
        """Says to the head that all is loaded."""
        self.control.send(Message("ready", fields))

    def join(self, rank: int, size: int, timeout: float) -> Group:
        """Connects with the others when the head says so."""
        self.next("connect")
        assert self._addresses is not None
        group = self._group = Group(self._addresses, rank, size, self._interface, timeout, self._broke)
        if self._gone.is_set():  # while the others connected
            raise ClusterError(self._why)
        return group

    def loading(self, done: int, total: int) -> None:
        with contextlib.suppress(ClusterError):
            self.control.send(Message("loading", {"done": done, "total": total}))

    def _tell_address(self, key: str, value: bytes) -> None:
        self.control.send(Message("address", {"key": key, "value": base64.b64encode(value).decode()}))

    def _broke(self, reason: str) -> None:
        self._why = self._why or reason
        self.work.put(None)

    # ── threads ───────────────────────────────────────────────────────────────────────────────────────────

    def _hear(self) -> None:
        """What the head says."""
        try:
            while True:
                message = self.control.receive(self._patience)
                if message.kind == "address":
                    key, value = take(message.fields, key=str, value=str)
                    if self._addresses is not None:
                        self._addresses.learn(key, base64.b64decode(value))
                elif message.kind == "goodbye":
                    self._goodbye = True
                    raise ClusterError("the head has ended")
                elif message.kind == "tick":
                    self.control.send(Message("echo", message.fields))
                else:
                    self._said.put(message)
        except ClusterError as error:
            if self._goodbye or not (self._over.is_set() or self._why):
                self._why = str(error)
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
                sent = {} if self._group is None else {"sent_bytes": self._group.sent_bytes}
                self.control.send(Message("tick", self.stats() | sent))
