"""The stages behind the head, as long as a group lasts: messages go through all of them and come back.

Each group is an epoch.  When it breaks, whoever waits hears it, and what the stages remembered of sequences is lost.
"""

import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Final

import penstock.errors
from penstock.cluster.choosing import Ask
from penstock.cluster.group import ASIDE, CHAIN, Group, as_boundary
from penstock.cluster.head import Head
from penstock.cluster.message import Message
from penstock.cluster.stage import Order, Stage
from penstock.errors import ClusterError, PenstockError

STALLED: Final = 300.0  # seconds in which some stage finishes a layer, however slow its disk is


class Reply:
    """What a message came back with, once it did."""

    def __init__(self) -> None:
        self._there = threading.Event()
        self._message: Message | None = None
        self._failure: str | None = None

    def come(self, message: Message) -> None:
        self._message = message
        self._there.set()

    def fail(self, reason: str) -> None:
        self._failure = reason
        self._there.set()

    def wait(self, seconds: float) -> bool:
        return self._there.wait(seconds)

    def message(self) -> Message:
        if self._message is None:
            raise ClusterError(f"a stage is lost: {self._failure}")
        error = self._message.fields.get("error")
        if error is not None:
            name, text, stage = error
            kind = getattr(penstock.errors, name, ClusterError)
            kind = kind if isinstance(kind, type) and issubclass(kind, PenstockError) else ClusterError
            raise kind(f"stage {stage + 1}: {text}")
        return self._message


class Epoch(Ask):
    """One group, from when it is there until it breaks."""

    def __init__(self, group: Group, boundary: str, progress: Callable[[], int]):
        self.group, self._boundary, self._progress = group, boundary, progress
        self.orders: deque[Order] = deque()  # that go with the next message
        self._sending = threading.Lock()
        self._replies: dict[int, Reply] = {}
        self._numbers = 0
        last = group.size - 1
        self._chain, self._aside = group.outgoing(1, CHAIN), group.outgoing(last, ASIDE)
        group.incoming(last, CHAIN, self._come)
        group.incoming(last, ASIDE, self._come)

    @property
    def up(self) -> bool:
        return self.group.broken is None

    def number(self) -> int:
        with self._sending:
            self._numbers += 1
            return self._numbers

    def through(self, message: Message) -> Callable[[], Message]:
        """Sends a message to the next stage, and through all of them; the result waits until it is back."""
        if "streams" in message.arrays:
            message.arrays["streams"] = as_boundary(message.arrays["streams"], self._boundary)
        with self._sending:
            message.fields["orders"] = [self.orders.popleft() for _ in range(len(self.orders))]
            return self._send(self._chain.send, message)

    def begin(self, question: Message) -> Callable[[], Message]:
        """To the last stage, past what it is doing."""
        question.fields["number"] = self.number()
        with self._sending:
            return self._send(self._aside.send, question)

    def _send(self, send: Callable[[Message], None], message: Message) -> Callable[[], Message]:
        reply = self._replies[message.fields["number"]] = Reply()
        if not self.up:  # after the reply is known: who broke it has not seen it, or this does
            reply.fail(self.group.broken or "")
        send(message)
        return lambda: self._wait(reply)

    def _wait(self, reply: Reply) -> Message:
        done = self._progress()
        while not reply.wait(STALLED):
            before, done = done, self._progress()
            if done == before:
                self.group.break_up(f"no stage has finished a layer in {STALLED:.0f} seconds")
        return reply.message()

    def _come(self, message: Message) -> None:
        reply = self._replies.pop(message.fields.get("number", 0), None)
        if reply is not None:
            reply.come(message)

    def fail(self, reason: str) -> None:
        for reply in list(self._replies.values()):
            reply.fail(reason)


class Pipeline:
    """The head's own stage and those behind it."""

    def __init__(self, head: Head, boundary: str):
        self.head, self._boundary = head, boundary
        self.stage: Stage | None = None  # the head's own, once its layers are known
        self._epoch: Epoch | None = None
        self._of_stage: Epoch | None = None  # whose sequences the head's own stage has
        head.on_up, head.on_down = self._up, self._down

    def _up(self, group: Group) -> None:
        self._epoch = Epoch(group, self._boundary, self._progress)

    def _down(self, reason: str) -> None:
        epoch, self._epoch = self._epoch, None
        if epoch is not None:
            epoch.fail(reason)

    def _progress(self) -> int:
        return self.head.progress()

    @property
    def latest(self) -> Epoch | None:
        """The group that is there now, if any is."""
        epoch = self._epoch
        return epoch if epoch is not None and epoch.up else None

    def current(self) -> Epoch:
        """The group that is there now; raises ClusterError if none is."""
        epoch = self.latest
        if epoch is None:
            raise ClusterError(self.head.why())
        return epoch

    @property
    def in_memory(self) -> bool:
        """Whether all stages have their experts where processors compute, as far as they have told."""
        modes = {member.stats.get("mode", "mmap") for member in list(self.head.members)}
        if self.stage is not None:
            modes.add(self.stage.runner.storage.plan.mode)
        return modes <= {"mmap", "resident"}

    def own(self, epoch: Epoch) -> Stage:
        """The head's own stage, which forgets sequences with the others."""
        assert self.stage is not None
        if self._of_stage is not epoch:
            self.stage.forget()
            self._of_stage = epoch
        return self.stage

    def order(self, epoch: Epoch, *order: Any) -> None:
        """All stages do it, the head's own at once."""
        self.own(epoch).apply(order)
        epoch.orders.append(order)

    def park(self) -> None:
        """Weights leave the memory of all stages."""
        epoch = self.latest
        if epoch is not None:
            epoch.through(Message("ask", {"number": epoch.number(), "what": "park", "about": []}))
        if self.stage is not None:
            self.stage.park()

    def ask(self, what: str, *about: Any, arrays: dict[str, Any] | None = None) -> Message:
        """What needs an answer of every stage."""
        epoch = self.current()
        message = Message(
            "ask", {"number": epoch.number(), "what": what, "about": list(about)}, dict(arrays or {})
        )
        message = self.own(epoch).process(message)
        return epoch.through(message)()
