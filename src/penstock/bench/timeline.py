"""One processor and one disk that work side by side: when what was asked of the disk is there."""


class Timeline:
    """Seconds from the beginning.  Urgent reads go before those that were asked for ahead of need.

    >>> time = Timeline(latency=0.0, bytes_per_second=10.0)
    >>> block = time.ask_ahead(30)                  # takes three seconds of the disk's time
    >>> time.compute(1.0)
    >>> time.wait(time.ask(20))                     # goes before what is left of it
    >>> time.now
    3.0
    >>> time.wait_ahead(block)
    >>> time.now, time.waited
    (5.0, 4.0)
    """

    def __init__(self, latency: float, bytes_per_second: float):
        self.now = 0.0
        self.waited = 0.0
        self.disk_bytes = 0.0
        self._latency, self._speed = latency, bytes_per_second
        self._disk = 0.0  # until when the disk's time is told
        self._ahead: dict[int, float] = {}  # bytes left of reads ahead, in order
        self._arrived: dict[int, float] = {}
        self._number = 0

    def compute(self, seconds: float) -> None:
        self.now += seconds

    def ask(self, nbytes: float, longer: float = 0.0) -> float:
        """Reads now, which takes so many seconds longer than it usually does; when it is there."""
        if not nbytes:
            return self.now
        self._idle_until(self.now)
        self.disk_bytes += nbytes
        self._disk = max(self._disk, self.now) + nbytes / self._speed + longer
        return self._disk + self._latency

    def ask_ahead(self, nbytes: float) -> int:
        """Reads while the disk has nothing else to do; a number to wait for."""
        self._idle_until(self.now)
        self._number += 1
        self._ahead[self._number] = nbytes
        self.disk_bytes += nbytes
        return self._number

    def wait(self, until: float) -> None:
        self.waited += max(0.0, until - self.now)
        self.now = max(self.now, until)

    def wait_ahead(self, number: int) -> None:
        """Until what was asked for ahead is there; it is urgent from now on."""
        self._idle_until(self.now)
        left = self._ahead.pop(number, 0.0)
        if left:
            self._disk = max(self._disk, self.now) + left / self._speed
            self._arrived[number] = self._disk
        self.wait(self._arrived.pop(number, 0.0) + self._latency)

    def drop(self, number: int) -> None:
        """What has not been read yet of something asked for ahead is not wanted any more."""
        self._idle_until(self.now)
        self.disk_bytes -= self._ahead.pop(number, 0.0)
        self._arrived.pop(number, None)

    def _idle_until(self, moment: float) -> None:
        """What the disk did since it was last asked, if it had time."""
        while self._ahead and self._disk < moment:
            number, left = next(iter(self._ahead.items()))
            done = min(left, (moment - self._disk) * self._speed)
            self._disk += done / self._speed
            if done < left:
                self._ahead[number] = left - done
            else:
                del self._ahead[number]
                self._arrived[number] = self._disk
        self._disk = max(self._disk, moment) if not self._ahead else self._disk
