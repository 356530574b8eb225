"""Work that a request's size decides: reading, rendering, tokens, grammars.  It never runs on the event loop.

It has a few threads of its own.  Small requests have some that large ones and grammars cannot take, and who waits is
served by turns, client after client.  The memory of requests is bounded too: one that is large is read only when
there is room for what becomes of it.
"""

import asyncio
import contextvars
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Final, NamedTuple, ParamSpec, TypeVar

from penstock.engine.constraint import COMPILED
from penstock.errors import BusyError
from penstock.machine.pages import give_back_freed
from penstock.server.http.errors import ApiError
from penstock.server.http.json_pieces import MAX_CONTAINERS
from penstock.server.http.request_context import RequestContext, current_request

P = ParamSpec("P")
T = TypeVar("T")

THREADS: Final = 2  # for small requests, and as many for costly work
SMALL: Final = 64 << 10  # bytes of a body that is read at any time
LONGEST: Final = 60.0  # seconds that a piece of work may take, waiting included
EVERY: Final = 1.0  # seconds between two times that free memory is given back, while there is work
MOST_WAITING: Final = 256  # pieces of work, or requests that wait for memory

PER_TOKEN: Final = 32  # bytes of a body for each token of the context; text has four, escaped letters ten
FLOOR, CEILING = 2 << 20, 32 << 20  # of the largest body
PREPARING: Final = 8  # bytes of memory for each byte of a body, while a prompt is made of it
ANSWERING: Final = 3  # and until it is answered
GRAMMARS: Final = 4  # bytes of memory for compiled grammars, for each byte of the largest body
FEWEST_KEPT: Final = 1 << 14  # characters of grammars: an agent's tools
UNBROKEN: Final = 1 << 17  # bytes of text without the end of a word or line, one such text at a time
TOKENIZING: Final = 256 * UNBROKEN  # bytes of memory that the tokenizer takes for it
STRUCTURE: Final = MAX_CONTAINERS << 10  # bytes of memory that the objects and lists of a body may take


def largest_body(context: int, reserved: int = 0) -> int:
    """Bytes that a request may have: what a full context can need, if that much memory is `reserved` for requests.

    >>> largest_body(4096) >> 20, largest_body(1 << 20) >> 20, largest_body(1 << 20, request_memory(6 << 20)) >> 20
    (2, 32, 6)
    """
    most = min(max(FLOOR, PER_TOKEN * context), CEILING)
    return min(most, (reserved - STRUCTURE - TOKENIZING) // (PREPARING + GRAMMARS)) if reserved else most


def request_memory(max_body: int) -> int:
    """Bytes of memory that requests take, if the largest has so many."""
    return (PREPARING + GRAMMARS) * max_body + STRUCTURE + TOKENIZING


def kept_grammars(max_body: int) -> int:
    """Characters of grammars that stay compiled then.

    >>> kept_grammars(2 << 20), kept_grammars(32 << 20)
    (16384, 262144)
    """
    return max(FEWEST_KEPT, GRAMMARS * max_body // COMPILED)


def share_of(budget: int | None) -> int:
    """The memory for requests within a budget."""
    return request_memory(CEILING if budget is None else min(max(FLOOR, budget >> 7), CEILING))


class Turn(NamedTuple):
    """Whose a piece of work is, and how large: several clients may share an address, and it is those with large
    requests who are in the way of those with small ones."""

    client: str
    magnitude: int = 0

    @classmethod
    def of(cls, context: RequestContext | None) -> "Turn":
        return cls("") if context is None else cls(context.client, context.body_bytes.bit_length())


class Place(NamedTuple):
    amount: int
    turn: asyncio.Future[None]


class FairGate:
    """So much of something at a time.  Who has to wait is served by turns, client after client, and of each client
    one magnitude after the other.  If too many wait, the client who has most of them is told to come back later."""

    def __init__(self, capacity: int):
        self.capacity, self.used = capacity, 0
        # By client and magnitude; whose turn it is comes first.
        self._waiting: dict[str, dict[int, deque[Place]]] = {}

    @property
    def waiting(self) -> int:
        return sum(map(self._waiting_of, self._waiting))

    def _waiting_of(self, client: str) -> int:
        return sum(map(len, self._waiting.get(client, {}).values()))

    async def take(self, amount: int, whose: Turn) -> None:
        """Waits for its turn; BusyError if too many do.  What is too much for the capacity passes alone."""
        if not self._waiting and self._has_room(amount):
            self.used += amount
            return
        if self.waiting >= MOST_WAITING:
            self._turn_away(whose.client)
        place = Place(amount, asyncio.get_running_loop().create_future())
        self._waiting.setdefault(whose.client, {}).setdefault(whose.magnitude, deque()).append(place)
        try:
            await place.turn
        except asyncio.CancelledError:
            if place.turn.cancelled():
                self._leave(whose, place)
            elif place.turn.exception() is None:  # its turn came at the same moment
                self.give(amount)
            raise

    def give(self, amount: int) -> None:
        self.used -= amount
        self._admit()

    def _has_room(self, amount: int) -> bool:
        return self.used == 0 or self.used + amount <= self.capacity

    def _turn_away(self, newcomer: str) -> None:
        """The latest and largest of the client who has most waiting, which may be the new one."""
        crowd = max(self._waiting, key=self._waiting_of)
        busy = BusyError(f"{MOST_WAITING} requests are waiting already")
        if self._waiting_of(newcomer) + 1 >= self._waiting_of(crowd):
            raise busy
        magnitude = max(self._waiting[crowd])
        place = self._waiting[crowd][magnitude][-1]
        self._leave(Turn(crowd, magnitude), place)
        if not place.turn.done():
            place.turn.set_exception(busy)

    def _leave(self, whose: Turn, place: Place) -> None:
        self._waiting[whose.client][whose.magnitude].remove(place)
        self._forget_empty(whose)
        self._admit()

    def _forget_empty(self, whose: Turn) -> None:
        groups = self._waiting[whose.client]
        if not groups[whose.magnitude]:
            del groups[whose.magnitude]
        if not groups:
            del self._waiting[whose.client]

    def _admit(self) -> None:
        while self._waiting:
            client, groups = next(iter(self._waiting.items()))
            magnitude, queue = next(iter(groups.items()))
            amount, turn = queue[0]
            if not self._has_room(amount) and not turn.done():
                return
            queue.popleft()
            groups[magnitude] = groups.pop(magnitude)  # last in turn
            self._waiting[client] = self._waiting.pop(client)
            self._forget_empty(Turn(client, magnitude))
            if not turn.done():
                self.used += amount
                turn.set_result(None)


class Lane:
    """Some threads, and the turns in which they are taken."""

    def __init__(self, name: str):
        self.gate = FairGate(THREADS)
        self.threads = ThreadPoolExecutor(THREADS, f"penstock-{name}")

    async def run(self, whose: Turn, function: Callable[[], T]) -> T:
        await self.gate.take(1, whose)
        work = asyncio.get_running_loop().run_in_executor(self.threads, function)
        work.add_done_callback(
            lambda _: self.gate.give(1)
        )  # nobody can stop a thread: it is taken until then
        return await asyncio.shield(work)


class Workers:
    """The threads and the memory for requests.  max_body: bytes of the largest."""

    def __init__(self, max_body: int):
        self.memory = FairGate(PREPARING * max_body)
        self.quick, self.costly = Lane("quick"), Lane("costly")
        self._returned = 0.0

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The function's result, with threads for the size of the request that this task works for."""
        context = current_request()
        large = context is not None and context.body_bytes > SMALL
        return await self._run(self.costly if large else self.quick, lambda: function(*args, **kwargs))

    async def run_costly(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The same for work that may take long whatever the request's size."""
        return await self._run(self.costly, lambda: function(*args, **kwargs))

    async def _run(self, lane: Lane, function: Callable[[], T]) -> T:
        within = contextvars.copy_context()
        try:
            return await asyncio.wait_for(
                lane.run(Turn.of(current_request()), lambda: within.run(function)), LONGEST
            )
        except TimeoutError:
            text = f"preparing the request took more than {LONGEST:g} seconds"
            raise ApiError(504, text, code="timeout") from None

    @asynccontextmanager
    async def room_for(self, nbytes: int) -> AsyncGenerator["Room", None]:
        """Memory for a request with a body of so many bytes, from now until it is answered."""
        room = Room(self.memory, nbytes)
        if nbytes > SMALL:
            try:
                await asyncio.wait_for(room.take(), LONGEST)
            except TimeoutError:
                raise BusyError("other large requests take all memory for requests") from None
        try:
            yield room
        finally:
            room.give()
            if nbytes > SMALL:
                self._return_memory()

    def _return_memory(self) -> None:
        """After the last large request, and now and then while there are always some."""
        now = time.monotonic()
        if not self.memory.used or now - self._returned > EVERY:
            self._returned = now
            self.costly.threads.submit(give_back_freed)


class Room:
    """The memory of one request."""

    def __init__(self, gate: FairGate, nbytes: int):
        self.gate, self.nbytes, self.held = gate, nbytes, 0

    async def take(self) -> None:
        await self.gate.take(PREPARING * self.nbytes, Turn.of(current_request()))
        self.held = PREPARING * self.nbytes

    def shrink(self) -> None:
        """Its prompt has been made."""
        kept = min(self.held, ANSWERING * self.nbytes)
        self.gate.give(self.held - kept)
        self.held = kept

    def give(self) -> None:
        self.gate.give(self.held)
        self.held = 0
