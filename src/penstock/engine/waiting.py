"""Requests that wait for a slot."""

import threading
from collections import Counter, deque
from collections.abc import Iterable
from operator import itemgetter

from penstock.engine.requests import Failed, Request
from penstock.errors import BusyError


class WaitingLine:
    """Clients take turns: who has fewest slots comes next, and among equals who had one longest ago.  If too many
    wait, the client who has most of them gives one up.  lock: held for every change"""

    def __init__(self, most: int, lock: threading.Condition):
        self.most, self._lock = most, lock
        self._requests: deque[Request] = deque()
        self._last_turn: dict[str, int] = {}  # of clients that are here, in the order in which they had one

    def __len__(self) -> int:
        return len(self._requests)

    def add(self, request: Request) -> None:
        """Raises BusyError if too many wait already."""
        with self._lock:
            if len(self._requests) >= self.most:
                self._turn_away(request.client)
            self._requests.append(request)

    def _turn_away(self, newcomer: str) -> None:
        """The latest of the client who has most waiting, which may be the new one."""
        busy = BusyError(f"{self.most} requests are waiting already")
        counts = Counter(request.client for request in self._requests if request.preempted is None)
        crowd, most = max(counts.items(), key=itemgetter(1), default=(newcomer, 0))
        if counts[newcomer] + 1 >= most:
            raise busy
        latest = next(
            each for each in reversed(self._requests) if each.client == crowd and each.preempted is None
        )
        self._requests.remove(latest)
        latest.emit(Failed(busy))

    def put_back(self, request: Request) -> None:
        """It has lost its slot, and comes first."""
        with self._lock:
            self._requests.appendleft(request)

    def take(self, request: Request) -> None:
        """Its turn has come."""
        with self._lock:
            self._requests.remove(request)
        self._last_turn[request.client] = max(self._last_turn.values(), default=0) + 1

    def drop_cancelled(self) -> None:
        with self._lock:
            for request in [request for request in self._requests if request.cancelled.is_set()]:
                self._requests.remove(request)

    def empty(self) -> list[Request]:
        """Those who waited, and do not any more."""
        with self._lock:
            requests = list(self._requests)
            self._requests.clear()
        return requests

    def in_turn(self, answered: Iterable[Request]) -> list[Request]:
        """First who has lost a slot, then whose client has fewest, and had the last one long ago.  answered: who has
        a slot"""
        with self._lock:
            waiting = list(self._requests)
        served = Counter(request.client for request in answered)
        here = {*served, *(request.client for request in waiting)}
        self._last_turn = {client: turn for client, turn in self._last_turn.items() if client in here}
        ranks: dict[Request, tuple[int, int]] = {}
        for request in waiting:
            rank = -1 if request.preempted is not None else served[request.client]
            ranks[request] = rank, self._last_turn.get(request.client, 0)
            served[request.client] += 1
        return sorted(waiting, key=ranks.__getitem__)
