"""What the tiers have done so far: where experts were found, what crossed the link, who computed how much."""

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(slots=True)
class TierCounters:
    """Counted in experts of a layer's turn.  Seconds are the host's, unless they say otherwise."""

    device_hits: int = 0  # in the device's memory already
    device_misses: int = 0
    device_evictions: int = 0
    memory_hits: int = 0  # of the misses: in the host's memory
    disk_reads: int = 0  # of the misses: had to be read
    copied: int = 0  # of the misses: brought to the device and kept there
    # Brought to the device because a layer was likely to need them, and needed: among the hits
    ahead_right: int = 0
    ahead_wrong: int = 0  # and not needed
    passed: int = 0  # of the misses: brought to the device for the rows of a long step
    on_host: int = 0  # of the misses: computed by the host
    link_bytes: int = 0
    expected_seconds: float = 0.0  # what was brought and computed should have taken, each turn by itself
    host_seconds: float = 0.0  # computing
    idle_seconds: float = 0.0  # waiting for the device to say which experts
    disk_stall_seconds: float = 0.0  # waiting for the disk
    host_stall_seconds: float = 0.0  # the device's: waiting for the host
    link_stall_seconds: float = 0.0  # the device's: then waiting for experts on their way

    def totals(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def outcome(self) -> dict[str, int]:
        """What follows from the requests alone: a replay finds the same."""
        return {name: value for name, value in asdict(self).items() if isinstance(value, int)}
