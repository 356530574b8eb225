"""Expert workers, as the head sees them: they come and go at any time, and nobody waits for them to come."""

import base64
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.cluster.agreement import Terms
from penstock.cluster.group import CHAIN, Addresses, Group
from penstock.cluster.members import Member
from penstock.cluster.message import Message, take
from penstock.cluster.share import RESERVED, Share, most_held
from penstock.errors import ClusterError
from penstock.storage.source import ExpertSource
from penstock.weights.checkpoint import Checkpoint


class Answer(NamedTuple):
    terms: NDArray[np.float32]  # [pairs, hidden]
    when: float  # it came


class Helper:
    """An expert worker that is ready: what is asked of it, and what comes back."""

    def __init__(self, member: Member, group: Group, held: range):
        self.member, self.held, self.share = member, held, Share(len(held))
        self.pairs = 0
        self.waited_seconds = 0.0
        self._numbers = 0
        self._asked: dict[int, Future[Answer]] = {}
        self._group, self._link = group, group.outgoing(1, CHAIN)
        group.incoming(1, CHAIN, self._come)

    @property
    def up(self) -> bool:
        return self._group.broken is None

    def taken(self, rows: int, trial: bool = False) -> range:
        """The experts that it is to compute in a step of so many rows; see `Share.count`."""
        return self.held[: self.share.count(rows, trial)]

    def ask(
        self, block: str, x: NDArray[np.float32], ids: NDArray[np.int64], weights: NDArray[np.float32]
    ) -> "Future[Answer]":
        self._numbers += 1
        answer = self._asked[self._numbers] = Future()
        self._link.send(
            Message(
                "terms", {"number": self._numbers, "block": block}, {"x": x, "ids": ids, "weights": weights}
            )
        )
        if not self.up:  # after it is known that somebody waits
            self.fail(self._group.broken or "")
        return answer

    def _come(self, message: Message) -> None:
        answer = self._asked.pop(message.fields.get("number", 0), None)
        if answer is None:
            return
        error, terms = message.fields.get("error"), message.arrays.get("terms")
        if error is not None or terms is None or terms.dtype != np.float32:
            answer.set_exception(ClusterError(str(error or "an answer without terms")))
        else:
            answer.set_result(Answer(terms, time.perf_counter()))

    def fail(self, reason: str) -> None:
        while self._asked:
            _, answer = self._asked.popitem()
            answer.set_exception(ClusterError(reason))

    def leave(self) -> None:
        self._group.leave()

    def as_dict(self) -> dict[str, Any]:
        few, many = self.share.now
        return self.member.as_dict() | {
            "experts": [self.held.start, self.held.stop],
            "experts_taken": {"decode": few, "prefill": many},
            "pairs": self.pairs,
            "waited_seconds": self.waited_seconds,
        }


class Helpers:
    """All of them.  Each is a group of two with the head."""

    def __init__(self, checkpoint: Checkpoint, interface: str | None):
        self._interface, self._experts = interface, checkpoint.config.experts
        self._each = sum(ExpertSource(checkpoint).slot_bytes)  # bytes of one expert of every layer
        self._terms: Terms | None = None
        self._lock = threading.Lock()
        self._held: dict[Member, range] = {}
        self._addresses: dict[Member, Addresses] = {}
        self._ready: dict[Member, Helper] = {}
        self._setting_up: list[threading.Thread] = []

    def start(self, terms: Terms) -> None:
        """Workers are set up from now on."""
        self._terms = terms
        for member in list(self._held):
            self._begin(member)

    @property
    def ready(self) -> list[Helper]:
        return [helper for helper in list(self._ready.values()) if helper.up]

    def members(self) -> list[Member]:
        return list(self._held)

    def join(self, member: Member) -> None:
        """Gives it the experts that nobody has, as many as it can hold.  Raises ClusterError if there are none."""
        share = member.said.share or 1.0
        count = min(int(share * self._experts), most_held(member.said.memory, self._each))
        if count < 1:
            raise ClusterError(
                f"worker {member.said.name} has room for no expert of every layer: "
                f"they take {self._each:,} bytes and {RESERVED:,} besides"
            )
        with self._lock:
            taken = {number for held in self._held.values() for number in held}
            free = [number for number in range(self._experts) if number not in taken]
            if not free:
                raise ClusterError("all experts are with other workers already")
            end = next((n for n in range(free[0], self._experts) if n in taken), self._experts)
            self._held[member] = range(free[0], min(end, free[0] + count))
        if self._terms is not None:
            self._begin(member)

    def _begin(self, member: Member) -> None:
        thread = threading.Thread(target=self._set_up, args=(member,), name="penstock-helper", daemon=True)
        self._setting_up = [*(each for each in self._setting_up if each.is_alive()), thread]
        thread.start()

    def _set_up(self, member: Member) -> None:
        terms, held = self._terms, self._held.get(member)
        assert terms is not None
        if held is None:
            return
        log = logging.getLogger(__name__)
        try:
            place = {"first": held.start, "end": held.stop}
            self._addresses[member] = addresses = Addresses(_telling(member), terms.timeout)
            member.control.send(Message("prepare", place | terms.fields()))
            member.wait(member.ready)
            member.control.send(Message("connect"))
            host = self._interface or member.control.here
            group = Group(addresses, 0, 2, host, terms.timeout, lambda why: self._down(member, why))
            member.wait(member.connected)
            self._ready[member] = Helper(member, group, held)
            if member.failure is not None:
                raise ClusterError(member.failure)
            log.info("worker %s computes up to %d of %d experts", member.name, len(held), self._experts)
        except ClusterError as error:
            if member.failure is None:  # else it has been said
                log.warning("%s", error)
            self.lose(member)

    def hear(self, member: Member, message: Message) -> None:
        """Where it listens."""
        key, value = take(message.fields, key=str, value=str)
        addresses = self._addresses.get(member)
        if addresses is not None:
            addresses.learn(key, base64.b64decode(value))

    def _down(self, member: Member, why: str) -> None:
        helper = self._ready.pop(member, None)
        if helper is not None:
            helper.fail(why)
        member.control.close()  # it comes again

    def lose(self, member: Member) -> None:
        with self._lock:
            self._held.pop(member, None)
        helper, addresses = self._ready.pop(member, None), self._addresses.pop(member, None)
        if addresses is not None:
            addresses.give_up()
        if helper is not None:
            helper.fail(member.failure or "it is gone")
            helper.leave()
        member.control.close()

    def stats(self) -> list[dict[str, Any]]:
        ready = {helper.member: helper for helper in self.ready}
        return [ready[member].as_dict() if member in ready else member.as_dict() for member in self.members()]

    def close(self) -> None:
        """Also of those that are being set up: a thread that is in gloo's code when the interpreter ends would take
        the process down with it."""
        for member in self.members():
            if member not in self._ready:
                member.lose("the head ends")
                self.lose(member)
        for thread in self._setting_up:
            thread.join(self._terms.timeout + 1 if self._terms is not None else None)
        for helper in self.ready:
            helper.leave()


def _telling(member: Member) -> Callable[[str, bytes], None]:
    def tell(key: str, value: bytes) -> None:
        member.control.send(Message("address", {"key": key, "value": base64.b64encode(value).decode()}))

    return tell
