"""Links of a data group: messages to another member, in order, and from it.

gloo hands bytes over when the receiver has said that it is ready for them.  If it said so only after it has heard of
a message, that would cost a round trip each time.  So it is always ready for several messages of up to FRAME bytes
before there are any: they cross once.  Of a longer one the rest is asked for when its beginning is there.

Who has nothing to say sends an empty message now and then, and who hears nothing for `timeout` seconds gives up.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from penstock.cluster.message import Message
from penstock.errors import ClusterError

FRAME: Final = 1 << 20  # bytes that a receiver is ready for: 31 tokens of the published width
READY: Final = 4  # times
PREFIX: Final = 8  # bytes before a message: how long it is
REST: Final = 1 << 10  # added to the tag of a link: the rest of long messages
TICKS: Final = 4  # signs of life in the time after which silence is a failure
LARGEST: Final = 1 << 34  # bytes of a message
END: Final = -1  # in place of a message's length: no more will come
LOOK: Final = 0.05  # seconds
FAREWELL: Final = 2.0  # seconds in which the other side hears that this one leaves, if it listens at all

Bytes = NDArray[np.uint8]


class Outgoing:
    """Messages to member `to`.  `send` gives them to gloo, which does not wait for the wire; `watch`, on a thread of
    its own, sees that they get away.  `lost` is called with the reason if they do not.

    It looks every LOOK seconds: to be woken by every message would cost its sender more than gloo takes for it."""

    def __init__(self, gloo: Any, to: int, tag: int, timeout: float, lost: Callable[[str], None]):
        self._gloo, self._to, self._tag, self._timeout, self._lost = gloo, to, tag, timeout, lost
        self._order = threading.Lock()
        self._closed = threading.Event()
        self._under_way: deque[tuple[Any, int]] = deque()
        self.sent_bytes = 0

    def send(self, message: Message) -> None:
        data = message.encode()
        first = _framed(len(data), data[: FRAME - PREFIX])
        try:
            with self._order:
                if self._closed.is_set():  # nobody listens behind the farewell
                    return
                self._put(first, self._tag)
                if len(data) > FRAME - PREFIX:
                    self._put(data[FRAME - PREFIX :], self._tag + REST)
        except RuntimeError as error:
            self._lost(first_line(error))

    def _put(self, data: Bytes, tag: int) -> None:
        self._under_way.append((self._gloo.send([torch.from_numpy(data)], self._to, tag), len(data)))

    def close(self) -> None:
        with self._order:
            self._closed.set()

    def watch(self) -> None:
        """Until it is closed.  Says now and then that there is nothing to say."""
        said = time.monotonic()
        try:
            while not self._closed.wait(min(LOOK, self._timeout / TICKS)):
                if self._under_way:
                    said = time.monotonic()
                elif time.monotonic() >= said + self._timeout / TICKS:
                    with self._order:
                        self._put(_framed(0), self._tag)
                self._see_away()
            self._see_away()
            with self._order:
                farewell = self._gloo.send([torch.from_numpy(_framed(END))], self._to, self._tag)
            farewell.wait(timedelta(seconds=min(FAREWELL, self._timeout)))
        except RuntimeError as error:
            self._lost(first_line(error))

    def _see_away(self) -> None:
        """What has been given to gloo so far."""
        while self._under_way:
            work, count = self._under_way.popleft()
            work.wait(timedelta(seconds=self._timeout))
            self.sent_bytes += count


class Incoming:
    """Messages of member `source`.  It has to live as long as its group: bytes that come for memory that is gone are
    left where they are, and gloo looks at them again and again."""

    def __init__(self, gloo: Any, source: int, tag: int, timeout: float):
        self._gloo, self._source, self._tag, self._patience = gloo, source, tag, timedelta(seconds=timeout)
        self._ready = deque(self._listen(np.empty(FRAME, np.uint8), tag) for _ in range(READY))

    def _listen(self, data: Bytes, tag: int) -> tuple[Bytes, Any]:
        return data, self._gloo.recv([torch.from_numpy(data)], self._source, tag)

    def __iter__(self) -> Iterator[Message]:
        """As they come.  Raises RuntimeError or ClusterError when no more will."""
        while True:
            frame, work = self._ready[0]
            work.wait(self._patience)
            count = int(frame[:PREFIX].view(np.int64)[0])
            if count == END:
                raise ClusterError("it has left")
            if not 0 <= count <= LARGEST:
                raise ClusterError(f"a message of {count:,} bytes")
            data: Bytes = np.empty(count, np.uint8)
            here = min(count, FRAME - PREFIX)
            data[:here] = frame[PREFIX : PREFIX + here]
            self._ready.popleft()
            self._ready.append(
                self._listen(frame, self._tag)
            )  # at once: the next message may be about to come
            if count > here:
                self._rest = self._listen(data[here:], self._tag + REST)
                self._rest[1].wait(self._patience)
            if count:
                yield Message.decode(data)


def _framed(count: int, data: Bytes | None = None) -> Bytes:
    """A message of so many bytes, or its beginning, as it crosses."""
    found: Bytes = np.empty(PREFIX + (0 if data is None else len(data)), np.uint8)
    found[:PREFIX].view(np.int64)[0] = count
    if data is not None:
        found[PREFIX:] = data
    return found


def first_line(error: Exception) -> str:
    """Of gloo's errors, without where in its code they come from."""
    line = str(error).splitlines()[0] if str(error) else type(error).__name__
    with suppress(ValueError):
        line = line[line.index("] ") + 2 :]
    return line.split(". This is typically")[0]
