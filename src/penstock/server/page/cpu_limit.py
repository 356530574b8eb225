"""Time to compute, for a process that does one thing at a time."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def cpu_limit(seconds: float) -> Iterator[None]:
    """TimeoutError once this process has computed for so long; how busy the machine is does not matter.  The limit
    around it, if there is one, goes on afterwards.  For the main thread only."""

    def stop(_signal: int, _frame: FrameType | None) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGVTALRM, stop)
    left, _ = signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        used = seconds - signal.getitimer(signal.ITIMER_VIRTUAL)[0]
        signal.setitimer(signal.ITIMER_VIRTUAL, max(0.001, left - used) if left else 0)
        signal.signal(signal.SIGVTALRM, before)
