"""Who guesses the next tokens of an answer: what followed last time, or the model's own draft block or module."""

from abc import ABC, abstractmethod
from array import array
from bisect import bisect_right
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from penstock.engine.session import Session

GRAM: Final = 3  # tokens that have to be alike before it is worth looking further back
TRIED: Final = 16  # earlier places that are compared
LONGEST: Final = 32  # tokens, beyond which a match is as good as any
LENGTHS: Final = (4, 6, 10, 20)  # of matches, where they become surer
CHANCES: Final = (0.3, 0.5, 0.7, 0.85, 0.95, 0.99)  # of the draft block's tokens, likewise


class Draft(NamedTuple):
    """sure: how sure the drafter is, as a number of a class; how often those are right is learned."""

    token: int
    sure: int


class Drafter(ABC):
    """One answer's guesses.  `free`: asking takes no time worth counting."""

    name: str
    free: bool

    @abstractmethod
    def push(self, tokens: Sequence[int]) -> None:
        """The text goes on with these."""

    def keep_up(self, session: "Session", wanted: bool) -> None:  # noqa: B027 - most have nothing to keep
        """Whether guesses will be asked for, or not for a while."""

    @abstractmethod
    def propose(self, session: "Session", token: int, most: int, least: float, /) -> list[Draft]:
        """What may follow `token`, which is certain and which the session has not read yet.  least: how likely all
        drafts together have to be for another one to be worth its time."""


class NgramDrafter(Drafter):
    """The text as it went on last time after the same tokens.  Places with the same three tokens before them are
    chained, latest first; the one that is like the end for longest is taken.

    >>> drafter = NgramDrafter()
    >>> drafter.push([1, 2, 3, 4, 5, 1, 2, 3])
    >>> [draft.token for draft in drafter.propose(None, 3, 4, 0.0)]
    [4, 5, 1, 2]
    """

    name, free = "ngram", True

    def __init__(self) -> None:
        self._tokens = array("i")
        self._latest: dict[tuple[int, ...], int] = {}  # three tokens → the place after them
        self._before = array("i", [-1] * GRAM)  # place → an earlier one after the same three tokens

    def push(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            self._tokens.append(token)
            place = len(self._tokens)
            if place >= GRAM:
                gram = tuple(self._tokens[-GRAM:])
                self._before[place:] = array("i", [self._latest.get(gram, -1)])
                self._latest[gram] = place

    def propose(self, _session: "Session | None", token: int, most: int, _least: float) -> list[Draft]:
        end = len(self._tokens)
        if end < GRAM:
            return []
        assert self._tokens[-1] == token
        place, longest, best = self._before[end], 0, -1
        for _ in range(TRIED):
            if place < 0 or longest == LONGEST:
                break
            alike = self._alike(place, end)
            if alike > longest:
                longest, best = alike, place
            place = self._before[place]
        if best < 0:
            return []
        sure = bisect_right(LENGTHS, longest)
        return [Draft(found, sure) for found in self._tokens[best : best + most]]

    def _alike(self, place: int, end: int) -> int:
        """Tokens before two places that are the same."""
        length = GRAM
        while (
            length < min(LONGEST, place)
            and self._tokens[place - length - 1] == self._tokens[end - length - 1]
        ):
            length += 1
        return length


class MtpDrafter(Drafter):
    """The draft block, fed with its own guesses from the second one on."""

    name, free = "mtp", False

    def push(self, tokens: Sequence[int]) -> None:
        """The session has what it needs."""

    def keep_up(self, session: "Session", wanted: bool) -> None:
        session.engine.stepper.keep_up(wanted)

    def propose(self, session: "Session", token: int, most: int, least: float) -> list[Draft]:
        guesses = session.engine.stepper.draft(session, token, most, least)
        return [Draft(guess, bisect_right(CHANCES, chance)) for guess, chance in guesses]


class DSparkDrafter(MtpDrafter):
    """The DSpark module, which guesses five tokens at once."""

    name = "dspark"
