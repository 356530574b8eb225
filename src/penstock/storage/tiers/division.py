"""Who computes what: a layer's missing experts, divided between the device, to which they are copied, and the host.

Only arithmetic with measured times (`native/tiers.h`).  Nothing depends on a clock, so a replay divides as the engine
did.
"""

import ctypes
from typing import NamedTuple

from penstock.backend.device import ExpertSeconds
from penstock.native import structs
from penstock.native.library import native


class Times(NamedTuple):
    """Seconds of one expert: over the link, on the host by the rows that need it (as `HOST_ROWS`), from the disk; and
    of the host, to begin at all."""

    link: float
    host: tuple[float, ...]
    disk: float = 0.0
    call: float = 0.0

    @staticmethod
    def measured(seconds: ExpertSeconds, disk: float = 0.0) -> "Times":
        return Times(seconds.link, tuple(seconds.host), disk, seconds.call)


class Division:
    """How many of the missing experts the host computes.

    exact: none, so that results do not depend on where experts were

    >>> Division(Times(link=2e-4, host=(1e-4, 4e-4, 1.6e-3))).host_share(3, 0)
    2
    """

    def __init__(self, times: Times, exact: bool = False):
        self._described = structs.Division(exact=exact)
        self.address = ctypes.addressof(self._described)
        self.learn(times)

    @property
    def exact(self) -> bool:
        return bool(self._described.exact)

    @exact.setter
    def exact(self, exact: bool) -> None:
        self._described.exact = exact

    def learn(self, times: Times) -> None:
        """What was measured."""
        self.times, described = times, self._described
        described.link, described.disk, described.call = times.link, times.disk, times.call
        described.host[:] = times.host

    def host_share(self, missing: int, on_disk: int, rows: float = 1.0) -> int:
        """Of so many that are missing on the device, `on_disk` of them in host memory neither, each needed by about
        so many rows: as many as make the layer end soonest; of equals the fewest."""
        return int(native().ps_host_share(self.address, missing, on_disk, rows))

    def ends(self, missing: int, on_disk: int, rows: float, count: int) -> float:
        """Seconds until the last of them is computed, or at least on the device.  Those on disk come one by one, and
        go by turns to whoever has a share left."""
        return float(native().ps_share_ends(self.address, missing, on_disk, rows, count))
