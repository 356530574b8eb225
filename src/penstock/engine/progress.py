"""How far the reading of a prompt is: what a person waits for before the first token of an answer."""

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PrefillProgress:
    """So many of the prompt's tokens are read, the first `cached` of them before: `source` and `reason` are those of
    `Match`.  `seconds` have passed since reading began.

    >>> print(PrefillProgress(done=1124, total=3604, cached=100, seconds=40))
    1,124 of 3,604 tokens, 25.6 tokens/s, 1:37 left
    """

    done: int
    total: int
    cached: int
    source: str = "none"
    reason: str = ""
    seconds: float = 0.0

    @property
    def rate(self) -> float:
        """Tokens per second; 0 while that is not known."""
        return (self.done - self.cached) / self.seconds if self.seconds > 0 else 0.0

    @property
    def seconds_left(self) -> float | None:
        """If it goes on like this; None while that is not known."""
        return (self.total - self.done) / self.rate if self.rate else None

    def __str__(self) -> str:
        far = f"{self.done:,} of {self.total:,} tokens"
        left = self.seconds_left
        return far if left is None else f"{far}, {short_rate(self.rate)} tokens/s, {clock_time(left)} left"


class PrefillWatch:
    """Makes progress of what `Engine.feed` tells: tokens of the call that are read, of which there are `total` after
    the first `cached`.  `tell` may raise, which ends the reading."""

    def __init__(
        self,
        total: int,
        cached: int,
        tell: Callable[[PrefillProgress], None],
        clock: Callable[[], float] = time.monotonic,
    ):
        self.total, self.cached, self.tell, self.clock = total, cached, tell, clock
        self.fed = cached  # before the call that runs now
        self.begun = clock()

    def __call__(self, read: float) -> None:
        done = min(self.total, self.fed + int(read))
        self.tell(PrefillProgress(done, self.total, self.cached, seconds=self.clock() - self.begun))


def short_rate(rate: float) -> str:
    """Three digits that count: 0.25, 1.23, 12.3, 123, 1,234."""
    return f"{rate:,.{2 if rate < 10 else 1 if rate < 100 else 0}f}"


def clock_time(seconds: float) -> str:
    """
    >>> clock_time(97), clock_time(4000)
    ('1:37', '1:06:40')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
