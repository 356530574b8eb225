"""What the store has done so far: every hit, every byte, every wait."""

from dataclasses import dataclass, fields
from typing import Any


@dataclass(slots=True)
class BlockCounters:
    """Of one block."""

    hits: int = 0
    misses: int = 0
    evictions: int = 0
    bytes_read: int = 0
    stall_seconds: float = 0.0  # waiting for experts with nothing else to do
    compute_seconds: float = 0.0


@dataclass(slots=True)
class Counters:
    """Of all blocks, and of what was asked for ahead of need."""

    blocks: list[BlockCounters]
    prefetch_issued: int = 0
    prefetch_useful: int = 0  # asked for ahead and then needed
    prefetch_wasted: int = 0
    guesses: int = 0  # of the reads ahead, those that were only likely, and turned out right or not
    guesses_right: int = 0
    read_errors: int = 0
    requests: int = 0  # layers that asked for experts

    def totals(self) -> dict[str, Any]:
        found: dict[str, Any] = {
            each.name: sum(getattr(block, each.name) for block in self.blocks)
            for each in fields(BlockCounters)
        }
        for name in (
            "prefetch_issued",
            "prefetch_useful",
            "prefetch_wasted",
            "read_errors",
            "requests",
        ):
            found[name] = getattr(self, name)
        return found

    def by_block(self) -> list[dict[str, Any]]:
        return [
            {each.name: getattr(block, each.name) for each in fields(BlockCounters)} for block in self.blocks
        ]
