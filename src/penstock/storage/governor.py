"""How large the expert pool may be, decided anew as the machine gets fuller or emptier (`--memory auto`).

Only decisions: whoever asks brings what was measured and the time.  The pool gives way quickly when memory is short
and grows slowly when there is clearly room.  A size at which memory was short is left alone for some minutes, so that
the pool settles under the knee instead of stepping over it again and again.
"""

import math
from typing import Final, NamedTuple

from penstock.errors import OptionError

SHRINK: Final = 8  # by an eighth
SHRINK_PAUSE_S: Final = 2.0
GROW: Final = 16  # by a sixteenth
GROW_PAUSE_S: Final = 10.0
QUIET_S: Final = 10.0  # without any sign of shortage, before growing
REMEMBERED_S: Final = 300.0  # how long a size that was too large is not tried again
MARGIN: Final = 512 << 20

# Beyond these, memory is short.  A page that is read from a good disk takes about 0.1 ms, so each of them means that
# one or two per cent of the time is lost.
MOST_STALLED: Final = 2.0  # per cent
MOST_MAJOR_FAULTS: Final = 100.0  # per second
MOST_SWAP_INS: Final = 100.0  # per second
AVERAGED_S: Final = 10.0  # what the kernel's avg10 looks back on


class Sample(NamedTuple):
    """What was measured.

    available     bytes that can be had without swapping (`Memory.room`)
    stalled       per cent of the last ten seconds that some task waited for memory (`Pressure.some.avg10`)
    major_faults  pages that this process had to wait for, per second
    swap_ins      pages that came back from swap, per second
    size          bytes that the pool holds
    """

    available: int
    stalled: float
    major_faults: float
    swap_ins: float
    size: int


class Governor:
    """Call `advise` about once a second, from when the model is loaded: loading reads pages too.

    The pool may hold less than it was advised, while it fills.  While it holds more, it is still giving way, and
    nothing new is asked of it.

    >>> governor = Governor(start=8 << 30, lowest=1 << 30, highest=20 << 30)
    >>> short = Sample(available=100 << 20, stalled=0, major_faults=0, swap_ins=0, size=8 << 30)
    >>> governor.advise(short, now=0.0) == 7 << 30
    True
    """

    def __init__(self, start: int, lowest: int, highest: int, margin: int = MARGIN):
        if not 0 < lowest <= start <= highest:
            raise OptionError(
                f"expert pool of {start:,} bytes, at least {lowest:,} and at most {highest:,}: "
                "expected 0 < least ≤ size ≤ most"
            )
        self.size, self.lowest, self.highest, self.margin = start, lowest, highest, margin
        self._quiet_since: float | None = None
        self._grown_at = -math.inf
        # When memory was last found short, and then: bytes in the pool, per cent of time stalled.
        self._short_at, self._short_size, self._short_stalled = -math.inf, 0, 0.0

    def advise(self, sample: Sample, now: float) -> int:
        """The size in bytes that the pool should have.  `now`: seconds of a clock that never goes back."""
        if self._is_quiet(sample):
            self._quiet_since = now if self._quiet_since is None else self._quiet_since
        else:
            self._quiet_since = None
        if sample.size > self.size:
            return self.size
        if self._quiet_since is None and self._is_short(sample, now):
            self._shrink(sample, now)
        elif self._may_grow(now):
            self._grow(sample, now)
        return self.size

    def _may_grow(self, now: float) -> bool:
        quiet = self._quiet_since is not None and now - self._quiet_since >= QUIET_S
        return quiet and now - self._grown_at >= GROW_PAUSE_S

    def _is_quiet(self, sample: Sample) -> bool:
        return (
            sample.available >= self.margin
            and sample.stalled <= MOST_STALLED
            and sample.major_faults <= MOST_MAJOR_FAULTS
            and sample.swap_ins <= MOST_SWAP_INS
        )

    def _is_short(self, sample: Sample, now: float) -> bool:
        """Whether what is not quiet is news, and not the echo of a shortage that was answered."""
        if now - self._short_at < SHRINK_PAUSE_S:
            return False
        # An average falls slowly after its cause has gone.  What is left of the old value is taken out, so that one
        # shortage is not answered again and again.
        old = math.exp((self._short_at - now) / AVERAGED_S)
        newly_stalled = (sample.stalled - old * self._short_stalled) / (1 - old)
        return not self._is_quiet(sample._replace(stalled=newly_stalled))

    def _shrink(self, sample: Sample, now: float) -> None:
        self._short_at, self._short_size, self._short_stalled = now, sample.size, sample.stalled
        self.size = max(self.lowest, sample.size - sample.size // SHRINK)

    def _grow(self, sample: Sample, now: float) -> None:
        wanted = min(self.size + self.size // GROW, self.highest)
        if now - self._short_at < REMEMBERED_S:  # a step below what was too much
            wanted = min(wanted, self._short_size - self._short_size // GROW)
        growth, promised = wanted - self.size, self.size - sample.size
        if growth > 0 and sample.available - promised > 2 * self.margin + growth:
            self.size, self._grown_at = wanted, now
