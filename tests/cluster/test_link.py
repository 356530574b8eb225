"""Messages over a link: whole, in order, and each in as few crossings as gloo allows."""

import threading
from collections import defaultdict, deque
from datetime import timedelta

import numpy as np
import pytest
import torch

from penstock.cluster.link import FRAME, PREFIX, READY, Incoming, Outgoing
from penstock.cluster.message import Message
from penstock.errors import ClusterError

TAG = 1


class Work:
    """An operation of `Wire`'s."""

    def __init__(self) -> None:
        self.done = threading.Event()

    def wait(self, patience: timedelta) -> None:
        if not self.done.wait(patience.total_seconds()):
            raise RuntimeError("nobody came")


class Wire:
    """gloo between two members, one way: bytes move when the receiver has said that it is ready, never before."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sends: defaultdict[int, deque[tuple[torch.Tensor, Work]]] = defaultdict(deque)
        self._receives: defaultdict[int, deque[tuple[torch.Tensor, Work]]] = defaultdict(deque)
        self.asked_late = 0  # how often a sender found nobody ready

    def send(self, tensors: list[torch.Tensor], to: int, tag: int) -> Work:
        assert to == 1
        work = Work()
        with self._lock:
            self.asked_late += not self._receives[tag]
            self._sends[tag].append((tensors[0], work))
            self._move(tag)
        return work

    def recv(self, tensors: list[torch.Tensor], source: int, tag: int) -> Work:
        assert source == 0
        work = Work()
        with self._lock:
            self._receives[tag].append((tensors[0], work))
            self._move(tag)
        return work

    def _move(self, tag: int) -> None:
        while self._sends[tag] and self._receives[tag]:
            (data, sent), (place, received) = self._sends[tag].popleft(), self._receives[tag].popleft()
            assert len(data) <= len(place)
            place[: len(data)] = data
            sent.done.set()
            received.done.set()


def message(number: int, size: int) -> Message:
    """Of `size` bytes and more."""
    return Message("step", {"number": number}, {"streams": np.full(size, number, np.uint8)})


def outgoing(wire: Wire, lost: list[str]) -> Outgoing:
    return Outgoing(wire, 1, TAG, 5.0, lost.append)


@pytest.mark.parametrize("size", [0, 100, FRAME - PREFIX - 256, FRAME, 3 * FRAME + 5])
def test_messages_come_whole_and_in_order(size: int) -> None:
    wire, lost = Wire(), list[str]()
    link, come = outgoing(wire, lost), iter(Incoming(wire, 0, TAG, 5.0))

    def send() -> None:
        for number in range(9):
            link.send(message(number, size))

    threading.Thread(target=send).start()
    for number in range(9):
        found = next(come)
        assert found.fields == {"number": number}
        assert (found.arrays["streams"] == number).all()
        assert len(found.arrays["streams"]) == size
    assert not lost


def test_a_receiver_is_ready_before_messages_are_sent() -> None:
    """Else every one of them would wait for a round trip."""
    wire, lost = Wire(), list[str]()
    come = iter(Incoming(wire, 0, TAG, 5.0))
    link = outgoing(wire, lost)
    link.send(message(0, 10))
    next(come)
    wire.asked_late = 0
    for number in range(3):
        for _ in range(READY):
            link.send(message(number, FRAME // 2))
        for _ in range(READY):
            next(come)
    assert wire.asked_late == 0


def test_of_a_long_message_only_the_rest_is_asked_for() -> None:
    wire, lost = Wire(), list[str]()
    come = iter(Incoming(wire, 0, TAG, 5.0))
    link = outgoing(wire, lost)
    link.send(message(0, 10))
    next(come)
    wire.asked_late = 0
    link.send(message(1, 10 * FRAME))
    next(come)
    assert wire.asked_late == 1


def test_a_message_with_an_impossible_length_is_not_waited_for() -> None:
    wire = Wire()
    wire.send([torch.from_numpy(np.array([1 << 40], np.int64).view(np.uint8))], 1, TAG)
    with pytest.raises(ClusterError, match="a message of"):
        next(iter(Incoming(wire, 0, TAG, 5.0)))


def test_who_leaves_says_so() -> None:
    wire, lost = Wire(), list[str]()
    link = outgoing(wire, lost)
    link.close()
    threading.Thread(target=link.watch).start()
    with pytest.raises(ClusterError, match="it has left"):
        next(iter(Incoming(wire, 0, TAG, 5.0)))
    assert not lost


def test_a_message_that_nobody_takes_is_noticed() -> None:
    lost: list[str] = []
    link = Outgoing(Wire(), 1, TAG, 0.05, lost.append)
    link.send(message(0, 10))
    link.watch()
    assert lost == ["nobody came"]


def test_nothing_follows_a_farewell() -> None:
    """Nobody would take it."""
    wire, lost = Wire(), list[str]()
    link = outgoing(wire, lost)
    link.close()
    link.send(message(0, 10))
    threading.Thread(target=link.watch).start()
    with pytest.raises(ClusterError, match="it has left"):
        next(iter(Incoming(wire, 0, TAG, 5.0)))
