"""How fast an answer was, and what its weights cost: a line for everybody, and one for who wants to know more."""

import time
from collections.abc import Callable
from typing import Any, Final

from penstock.cli.terminal import Output
from penstock.engine.engine import Engine
from penstock.engine.progress import short_rate

LONG: Final = 5.0  # seconds after which a person is told how fast it was, without having asked


class AnswerStats:
    """Made when the prompt is about to be read; `token` is called for every token of the answer."""

    def __init__(self, engine: Engine, clock: Callable[[], float] = time.perf_counter):
        self._engine, self._clock = engine, clock
        self._before = engine.stats()
        self.begun = self.last = clock()
        self.first: float | None = None
        self.tokens = 0
        self.read = 0  # tokens of the prompt that were read, to be set

    def token(self) -> None:
        self.last = self._clock()
        self.tokens += 1
        if self.first is None:
            self.first = self.last

    @property
    def prefill(self) -> float:
        """Seconds to the first token."""
        return (self.first or self.last) - self.begun

    @property
    def decode(self) -> float:
        """Seconds for the others."""
        return self.last - (self.first or self.last)

    def drafts(self, now: dict[str, Any]) -> tuple[int, int]:
        """Tokens that were guessed for this answer, and those that were right, by what the engine says now."""

        def total(stats: dict[str, Any], name: str) -> int:
            return sum(map(sum, stats.get("draft", {}).get(name, {}).values()))

        drafted, accepted = (total(now, name) - total(self._before, name) for name in ("drafted", "accepted"))
        return drafted, accepted

    def show(self, output: Output, asked: bool) -> None:
        """After the answer: if it was asked for, or on a terminal if it took long."""
        if asked or (output.is_terminal and self.last - self.begun >= LONG):
            output.note(self.line())
        if asked:
            output.note(self.details())

    def line(self) -> str:
        if self.first is None:
            return "no token came"
        parts = [
            f"first token after {self.prefill:.1f} s",
            f"prefill {_speed(self.read, self.prefill)}",
            f"decode {_speed(self.tokens - 1, self.decode)}",
        ]
        after = self._engine.stats()
        drafted, accepted = self.drafts(after)
        if drafted:
            parts.append(f"drafts {accepted / drafted:.0%} right")
        if "hits" in after:
            hits, misses = self._since(after, "hits"), self._since(after, "misses")
            if hits + misses:
                parts.append(f"experts {hits / (hits + misses):.0%} in memory")
            parts.append(f"{self._since(after, 'disk_bytes') / 1e9:.2f} GB read")
            parts.append(f"{self._waited(after) / (self.last - self.begun):.0%} waiting for the disk")
        return " · ".join(parts)

    def details(self) -> str:
        """What the storage did."""
        after = self._engine.stats()
        if "device" in after:
            return f"{after['device']['name']}: all weights are in its memory"
        if "hits" not in after:
            return f"{after['mode']}: the system keeps the weights in memory"
        asked = self._since(after, "hits") + self._since(after, "misses")
        read, reading = self._since(after, "disk_bytes"), self._since(after, "read_seconds")
        return " · ".join(
            [
                f"{asked:,.0f} experts asked for",
                f"disk {read / reading / 1e9:.1f} GB/s" if reading else "nothing read",
                f"waited {self._waited(after):.2f} of {self.last - self.begun:.2f} s",
                f"ahead {self._since(after, 'prefetch_useful'):.0f} used, "
                f"{self._since(after, 'prefetch_wasted'):.0f} not",
                f"evicted {self._since(after, 'evictions'):.0f}",
            ]
        )

    def _waited(self, after: dict[str, Any]) -> float:
        """Seconds in which nothing was computed, because weights were still on their way."""
        return self._since(after, "stall_seconds") + self._since(after, "dense_stall_seconds")

    def _since(self, after: dict[str, Any], name: str) -> float:
        return float(after.get(name, 0) - self._before.get(name, 0))


def _speed(tokens: int, seconds: float) -> str:
    many = f"{tokens:,} token{'s' * (tokens != 1)}"
    return f"{many} at {short_rate(tokens / seconds)}/s" if tokens > 0 and seconds > 0 else many
