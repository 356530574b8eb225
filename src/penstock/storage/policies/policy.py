"""The interface between the cache and what it gives up."""

from abc import ABC, abstractmethod
from collections.abc import Container, Iterable
from typing import ClassVar

Key = int  # block number times experts per block, plus expert number


class Policy(ABC):
    """Which resident expert to give up.  The cache tells it everything that happens, in order.

    A key is resident from `add` until `remove`.  Answers depend on these calls alone, so the same requests always
    end in the same evictions.  `slots` is about how many experts fit: a hint for dividing the room, not a limit.
    """

    name: ClassVar[str]

    def __init__(self, slots: int):
        self.slots = slots

    @abstractmethod
    def hit(self, key: Key) -> None:
        """A resident key is used again."""

    @abstractmethod
    def add(self, key: Key) -> None:
        """A key that was not resident is used and brought in."""

    @abstractmethod
    def remove(self, key: Key) -> None:
        """A resident key is gone: evicted, or its bytes could not be read."""

    @abstractmethod
    def victim(self, pinned: Container[Key]) -> Key | None:
        """The resident key to go next, none of `pinned`; None when all are.  Asking changes nothing."""

    def resize(self, slots: int) -> None:
        """From now on about so many experts fit."""
        self.slots = slots


def first_free(keys: Iterable[Key], pinned: Container[Key]) -> Key | None:
    """The first key that is not pinned."""
    return next((key for key in keys if key not in pinned), None)
