"""Who computes what: a layer's missing experts, divided between the device, to which they are copied, and the host.

Only arithmetic with measured times.  Nothing depends on a clock, so a replay divides as the engine did.
"""

from typing import NamedTuple

from penstock.backend.device import HOST_ROWS, ExpertSeconds


class Times(NamedTuple):
    """Seconds of one expert: over the link, on the host by the rows that need it (as `HOST_ROWS`), from the disk; of
    the host, to ask for a copy before it begins to compute itself; and to begin at all."""

    link: float
    host: tuple[float, ...]
    disk: float = 0.0
    ask: float = 0.0
    call: float = 0.0

    @staticmethod
    def measured(seconds: ExpertSeconds, disk: float = 0.0) -> "Times":
        return Times(seconds.link, tuple(seconds.host), disk, seconds.ask, seconds.call)

    def host_at(self, rows: float) -> float:
        """Linear between what was measured, and beyond."""
        last = next((n for n in range(1, len(HOST_ROWS)) if rows <= HOST_ROWS[n]), len(HOST_ROWS) - 1)
        low, high = HOST_ROWS[last - 1 : last + 1]
        first, second = self.host[last - 1 : last + 1]
        return first + (second - first) * (rows - low) / (high - low)


class Division:
    """How many of the missing experts the host computes.

    exact: none, so that results do not depend on where experts were

    >>> Division(Times(link=2e-4, host=(1e-4, 4e-4, 1.6e-3))).host_share(3, 0)
    2
    """

    def __init__(self, times: Times, exact: bool = False):
        self.times, self.exact = times, exact
        self._known: dict[tuple[int, int, float], int] = {}

    def learn(self, times: Times) -> None:
        """What was measured."""
        self.times = times
        self._known.clear()

    def host_share(self, missing: int, on_disk: int, rows: float = 1.0) -> int:
        """Of so many that are missing on the device, `on_disk` of them in host memory neither, each needed by about
        so many rows: as many as make the layer end soonest; of equals the fewest."""
        if self.exact or not missing:
            return 0
        key = (missing, on_disk, rows)
        found = self._known.get(key)
        if found is None:
            found = min(
                range(missing + 1), key=lambda count: (self.ends(missing, on_disk, rows, count), count)
            )
            self._known[key] = found
        return found

    def ends(self, missing: int, on_disk: int, rows: float, count: int) -> float:
        """Seconds until the last of them is computed, or at least on the device.  Those on disk come one by one, and
        go by turns to whoever has a share left."""
        times, copied = self.times, missing - count
        computing = times.host_at(rows)
        link, host = 0.0, copied * times.ask + (times.call if count else 0.0)
        for number in range(missing):
            there = max(0, number - (missing - on_disk) + 1) * times.disk  # those that are here come first
            ends = max(link, there) + times.link, max(host, there) + computing
            if copied and (not count or ends[0] <= ends[1]):
                link, copied = ends[0], copied - 1
            else:
                host, count = ends[1], count - 1
        return max(link, host)
