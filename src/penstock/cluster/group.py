"""The data group: torch.distributed's gloo between the stages.

Addresses are exchanged over the control connections, so no port is open for that.  A group that broke once stays
broken; the next one is made anew.
"""

import atexit
import threading
import weakref
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final

from torch.distributed import ProcessGroupGloo, Store  # type: ignore[attr-defined]

from penstock.cluster.link import Incoming, Outgoing, first_line
from penstock.cluster.message import Message
from penstock.errors import ClusterError

PATIENT: Final = 5  # times its timeout is what gloo waits for a member that has told its address to connect
SHORTEST: Final = 1.0  # seconds of that timeout: it is also that of a single attempt
CHAIN, ASIDE = 0, 1  # tags: steps go from stage to stage, questions to the last one past them


class Addresses(Store):
    """What the members of a group tell each other to find each other; `tell` carries it to the others."""

    def __init__(self, tell: Callable[[str, bytes], None], timeout: float):
        super().__init__()
        self._tell, self._patience = tell, timeout
        self._known: dict[str, bytes] = {}
        self._changed = threading.Condition()
        self._lost = False

    def learn(self, key: str, value: bytes) -> None:
        """What another member has told."""
        with self._changed:
            self._known[key] = value
            self._changed.notify_all()

    def give_up(self) -> None:
        with self._changed:
            self._lost = True
            self._changed.notify_all()

    # What torch calls.

    def set(self, key: str, value: bytes | str) -> None:
        value = value.encode() if isinstance(value, str) else bytes(value)
        self.learn(key, value)
        self._tell(key, value)

    def get(self, key: str) -> bytes:
        self.wait([key])
        return self._known[key]

    def wait(self, keys: list[str], _: Any = None) -> None:
        with self._changed:
            there = self._changed.wait_for(
                lambda: self._lost or all(key in self._known for key in keys), self._patience
            )
            if self._lost or not there:
                raise RuntimeError("a member did not come")


class Group:
    """This process as number `rank` of `size` stages.  `on_break` is called once, with the reason."""

    def __init__(
        self,
        addresses: Addresses,
        rank: int,
        size: int,
        host: str,
        timeout: float,
        on_break: Callable[[str], None],
    ):
        self.rank, self.size, self.timeout = rank, size, timeout
        self._on_break = on_break
        self._breaking = threading.Lock()
        self.broken: str | None = None
        self._links: list[Outgoing] = []
        self._incoming: list[Incoming] = []
        self._threads: list[threading.Thread] = []
        # Threads that wait in gloo's code when the interpreter ends would take the process down with them.
        leave = weakref.WeakMethod(self.leave)
        atexit.register(lambda: (method := leave()) is not None and method())
        gloo: Any = ProcessGroupGloo
        options = gloo._Options()
        options._devices = [ProcessGroupGloo.create_device(hostname=host)]
        # Of connecting alone: what is sent and received says itself how long it may take.
        options._timeout = timedelta(seconds=max(SHORTEST, timeout / PATIENT))
        options._threads = 1
        try:
            self.gloo: Any = ProcessGroupGloo(addresses, rank, size, options)
        except RuntimeError as error:
            raise ClusterError(f"the stages could not connect: {first_line(error)}") from None

    def outgoing(self, to: int, tag: int) -> Outgoing:
        def lost(why: str) -> None:
            self.break_up(f"stage {to + 1} takes nothing: {why}")

        link = Outgoing(self.gloo, to, tag, self.timeout, lost)
        self._links.append(link)
        self.start(f"penstock-to-{to}", link.watch)
        return link

    @property
    def sent_bytes(self) -> int:
        return sum(link.sent_bytes for link in self._links)

    def incoming(self, source: int, tag: int, handle: Callable[[Message], None]) -> None:
        """Calls `handle`, on a thread of its own, with every message that comes."""
        self.start(f"penstock-from-{source}", lambda: self._receive(source, tag, handle))

    def start(self, name: str, run: Callable[[], None]) -> None:
        thread = threading.Thread(target=run, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _receive(self, source: int, tag: int, handle: Callable[[Message], None]) -> None:
        try:
            link = Incoming(self.gloo, source, tag, self.timeout)
            self._incoming.append(link)
            for message in link:
                handle(message)
        except (RuntimeError, ClusterError) as error:
            self.break_up(f"nothing comes from stage {source + 1}: {first_line(error)}")

    def break_up(self, reason: str) -> None:
        """The group is of no use any more: links end, on this side and so on the others."""
        with self._breaking:
            if self.broken is not None:
                return
            self.broken = reason
        for link in self._links:
            link.close()
        self._on_break(reason)

    def leave(self) -> None:
        """Breaks the group up and waits for its threads."""
        self.break_up("this stage leaves")
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(self.timeout + 1)
