"""The data group: torch.distributed's gloo between the stages, and the links that messages take through it.

Addresses are exchanged over the control connections, so no port is open for that.  Who has nothing to say sends an
empty message now and then, and who hears nothing for `timeout` seconds gives the group up.  A group that broke once
stays broken; the next one is made anew.
"""

import atexit
import queue
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch.distributed import ProcessGroupGloo, Store  # type: ignore[attr-defined]

from penstock.cluster.message import Message
from penstock.errors import ClusterError

TICKS: Final = 4  # signs of life in the time after which silence is a failure
LARGEST: Final = 1 << 34  # bytes of a message
END: Final = -1  # in place of a message's length: no more will come
FAREWELL: Final = 2.0  # seconds in which the other side hears that this one leaves, if it listens at all
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
        self._threads: list[threading.Thread] = []
        # Threads that wait in gloo's code when the interpreter ends would take the process down with them.
        leave = weakref.WeakMethod(self.leave)
        atexit.register(lambda: (method := leave()) is not None and method())
        gloo: Any = ProcessGroupGloo
        options = gloo._Options()
        options._devices = [ProcessGroupGloo.create_device(hostname=host)]
        options._timeout = timedelta(seconds=timeout)
        options._threads = 1
        try:
            self.gloo: Any = ProcessGroupGloo(addresses, rank, size, options)
        except RuntimeError as error:
            raise ClusterError(f"the stages could not connect: {_first_line(error)}") from None

    def outgoing(self, to: int, tag: int) -> "Outgoing":
        link = Outgoing(self, to, tag)
        self._links.append(link)
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
        length, patience = torch.zeros(1, dtype=torch.int64), timedelta(seconds=self.timeout)
        try:
            while True:
                self.gloo.recv([length], source, tag).wait(patience)
                count = int(length)
                if count == END:
                    raise ClusterError("it has left")
                if not 0 <= count <= LARGEST:
                    raise ClusterError(f"a message of {count:,} bytes")
                if count:
                    data: NDArray[np.uint8] = np.empty(count, np.uint8)
                    self.gloo.recv([torch.from_numpy(data)], source, tag).wait(patience)
                    handle(Message.decode(data))
        except (RuntimeError, ClusterError) as error:
            self.break_up(f"nothing comes from stage {source + 1}: {_first_line(error)}")

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


class Outgoing:
    """Messages to another member, sent in order by a thread of its own."""

    def __init__(self, group: Group, to: int, tag: int):
        self._group, self._to, self._tag = group, to, tag
        self._waiting: queue.SimpleQueue[NDArray[np.uint8] | None] = queue.SimpleQueue()
        self.sent_bytes = 0
        group.start(f"penstock-to-{to}", self._run)

    def send(self, message: Message) -> None:
        self._waiting.put(message.encode())

    def close(self) -> None:
        self._waiting.put(None)

    def _run(self) -> None:
        try:
            while True:
                try:
                    data = self._waiting.get(timeout=self._group.timeout / TICKS)
                except queue.Empty:
                    self._put(torch.zeros(1, dtype=torch.int64))
                    continue
                if data is None:
                    self._put(torch.tensor([END], dtype=torch.int64), FAREWELL)
                    return
                self._put(torch.tensor([len(data)], dtype=torch.int64))
                self._put(torch.from_numpy(data))
                self.sent_bytes += len(data)
        except RuntimeError as error:
            self._group.break_up(f"stage {self._to + 1} takes nothing: {_first_line(error)}")

    def _put(self, data: torch.Tensor, most: float = float("inf")) -> None:
        patience = timedelta(seconds=min(most, self._group.timeout))
        self._group.gloo.send([data], self._to, self._tag).wait(patience)


def _first_line(error: Exception) -> str:
    """Of gloo's errors, without where in its code they come from."""
    line = str(error).splitlines()[0] if str(error) else type(error).__name__
    with suppress(ValueError):
        line = line[line.index("] ") + 2 :]
    return line.split(". This is typically")[0]


def as_boundary(streams: NDArray[np.float32], dtype: str) -> NDArray[Any]:
    """Streams as they cross from stage to stage."""
    if dtype == "f32":
        return streams
    rounded = torch.from_numpy(streams).to(torch.bfloat16).view(torch.uint16)
    return rounded.numpy()


def from_boundary(crossed: NDArray[Any]) -> NDArray[np.float32]:
    """The way back."""
    if crossed.dtype == np.float32:
        return crossed
    return torch.from_numpy(crossed).view(torch.bfloat16).to(torch.float32).numpy()
