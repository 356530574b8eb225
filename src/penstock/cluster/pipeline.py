"""The stages behind the head, as long as a group lasts: messages go through all of them and come back.

Each group is an epoch.  When it breaks, whoever waits hears it, and what the stages remembered of sequences is lost.
"""

import queue
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Final

import penstock.errors
from penstock.cluster.choosing import Ask
from penstock.cluster.group import ASIDE, CHAIN, Group
from penstock.cluster.head import Head
from penstock.cluster.message import Message, take
from penstock.cluster.stage import Order, Stage
from penstock.cluster.stages import Stages
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
    """One group, from when it is there until it breaks.  again: the head's own turn of what the others have done, if
    there is one; None when nobody waits for it any more"""

    def __init__(
        self,
        group: Group,
        turns: int,
        again: Callable[["Epoch", Message], Message | None],
        progress: Callable[[], int],
    ):
        self.group, self._turns, self._again, self._progress = group, turns, again, progress
        self._returned: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        self.orders: deque[Order] = deque()  # that go with the next message
        self._sending = threading.Lock()
        self._replies: dict[int, Reply] = {}
        self._numbers = 0
        last = group.size - 1
        self._chain, self._aside = group.outgoing(1, CHAIN), group.outgoing(last, ASIDE)
        group.incoming(last, CHAIN, self._return)
        group.incoming(last, ASIDE, self._come)
        if turns > 1:
            group.start("penstock-turns", self._take_turns)

    @property
    def up(self) -> bool:
        return self.group.broken is None

    def number(self) -> int:
        with self._sending:
            self._numbers += 1
            return self._numbers

    def through(self, message: Message) -> Callable[[], Message]:
        """Sends a message to the next stage, and through all of them; the result waits until it is back."""
        message.fields["turn"] = 0
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

    def _return(self, message: Message) -> None:
        """From the last machine, whose layers need not be the last ones."""
        (turn,) = take(message.fields, turn=int)
        if turn + 1 < self._turns:
            self._returned.put(message)
        else:
            self._come(message)

    def _take_turns(self) -> None:
        while (message := self._returned.get()) is not None:
            message.fields["turn"] += 1
            try:
                done = self._again(self, message)
            except Exception as error:
                self.group.break_up(f"the head cannot go on: {error}")
                raise
            if done is not None:
                self._chain.send(done)

    def _come(self, message: Message) -> None:
        reply = self._replies.pop(message.fields.get("number", 0), None)
        if reply is not None:
            reply.come(message)

    def fail(self, reason: str) -> None:
        self._returned.put(None)
        for reply in list(self._replies.values()):
            reply.fail(reason)


class Pipeline:
    """The head's own stage and those behind it."""

    def __init__(self, head: Head):
        self.head = head
        self.stages: Stages | None = None  # the head's own, once its layers are known
        self.computing = threading.Lock()  # held by who uses them: the engine's thread, or what has come back
        self._epoch: Epoch | None = None
        self._of_stages: Epoch | None = None  # whose sequences the head's own stages have
        head.on_up, head.on_down = self._up, self._down

    def _up(self, group: Group) -> None:
        self._epoch = Epoch(group, len(self.head.tiling.head), self._again, self._progress)

    def _down(self, reason: str) -> None:
        epoch, self._epoch = self._epoch, None
        if epoch is not None:
            epoch.fail(reason)

    def _again(self, epoch: Epoch, message: Message) -> Message | None:
        with self.computing:
            if self.stages is None or self._of_stages is not epoch:  # they have forgotten its sequences
                return None
            return self.stages.process(message)

    def _progress(self) -> int:
        own = 0 if self.stages is None else self.stages.stats()["layers_done"]
        return self.head.progress() + int(own)

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
        if self.stages is not None:
            modes.add(self.stages.first.runner.storage.plan.mode)
        return modes <= {"mmap", "resident"}

    def own(self, epoch: Epoch) -> Stage:
        """The head's own first stage.  Its stages forget sequences with the others."""
        assert self.stages is not None
        if self._of_stages is not epoch:
            with self.computing:
                self.stages.forget()
                self._of_stages = epoch
        return self.stages.first

    def order(self, epoch: Epoch, *order: Any) -> None:
        """All stages do it, the head's own first one at once."""
        self.own(epoch).apply(order)
        epoch.orders.append(order)

    def park(self) -> None:
        """Weights leave the memory of all stages."""
        epoch = self.latest
        if epoch is not None:
            epoch.through(Message("ask", {"number": epoch.number(), "what": "park", "about": []}))
        if self.stages is not None:
            with self.computing:
                self.stages.park()

    def ask(self, what: str, *about: Any, arrays: dict[str, Any] | None = None) -> Message:
        """What needs an answer of every stage."""
        epoch = self.current()
        message = Message(
            "ask", {"number": epoch.number(), "what": what, "about": list(about)}, dict(arrays or {})
        )
        first = self.own(epoch)
        with self.computing:
            message = first.process(message)
        return epoch.through(message)()
