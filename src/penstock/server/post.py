"""From the scheduler's thread to the event loop, many updates at a time."""

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Generic, TypeVar

T = TypeVar("T")


class Post(Generic[T]):
    """Calls `take(update)` on the loop for whatever another thread sends.  A step has something for everybody: waking
    the loop for each of them would cost more than the step's own work around the model."""

    def __init__(self, loop: asyncio.AbstractEventLoop):
        self.loop = loop
        self._letters: deque[tuple[Callable[[T], None], T]] = deque()
        self._called = False

    def send(self, take: Callable[[T], None], update: T) -> None:
        """From any thread."""
        self._letters.append((take, update))
        if not self._called:
            self._called = True
            with suppress(RuntimeError):  # the loop is closed: nobody listens any more
                self.loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        self._called = False  # first: what is sent from now on calls again, what was sent before is here
        while self._letters:
            take, update = self._letters.popleft()
            take(update)
