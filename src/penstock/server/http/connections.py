"""How many connections there are at a time: fewer than the process may have descriptors, and no address has all.

Where a new one would be too many, the connection goes that has been idle longest, of the same address if that has
its share: whoever holds connections open without asking anything keeps nobody out.
"""

import resource
from collections import Counter
from typing import Any, Final, Protocol

SPARE: Final = 64  # descriptors for the model's files, logs, sessions, and connections on their way in or out
FEWEST: Final = 8
DESCRIPTORS: Final = 8192  # that a server asks for, if it may
ACCEPTED: Final = 8  # at a time; those before are counted then


class Connection(Protocol):
    @property
    def address(self) -> str: ...

    @property
    def idle(self) -> bool: ...

    def end(self) -> None: ...


class Connections:
    """Those that are open, the one that was used longest ago first."""

    def __init__(self, most: int, most_of_address: int):
        self.most, self.most_of_address = most, most_of_address
        self._open: dict[Any, str] = {}
        self._by_address: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._open)

    def add(self, new: Connection) -> bool:
        """Whether there is room for a new one, made if need be."""
        address = new.address
        crowded = self._by_address[address] >= self.most_of_address
        if crowded or len(self._open) >= self.most:
            idle = (each for each, of in self._open.items() if each.idle and (not crowded or of == address))
            oldest = next(idle, None)
            if oldest is None:
                return False
            self.remove(oldest)
            oldest.end()
        self._open[new] = address
        self._by_address[address] += 1
        return True

    def used(self, connection: Connection) -> None:
        if connection in self._open:
            self._open[connection] = self._open.pop(connection)

    def remove(self, connection: Connection) -> None:
        address = self._open.pop(connection, None)
        if address is not None:
            self._by_address -= Counter({address: 1})


def descriptors() -> int:
    """How many this process may have, after asking for enough."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS if hard == resource.RLIM_INFINITY else min(DESCRIPTORS, hard)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return DESCRIPTORS if soft == resource.RLIM_INFINITY else soft
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return wanted


def room_for_connections(wanted: int) -> int:
    """As many as are wanted, if there are descriptors for them.  A connection may need one more, for a file."""
    return max(FEWEST, min(wanted, descriptors() - SPARE))
