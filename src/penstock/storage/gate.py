"""Whether guesses are worth making, by those that were made."""

from typing import Final

TRIAL: Final = 256  # guesses after which it is decided whether to go on
PAUSE: Final = 20_000  # guesses not made before the next trial


class Gate:
    """Closes for a while when too few guesses turn out right.

    worth: right ones of all, below which what they take is better left alone
    """

    def __init__(self, worth: float):
        self._worth = worth
        self._guesses = self._right = self._pause = 0

    @property
    def open(self) -> bool:
        return self._pause == 0

    def passes(self) -> bool:
        """Whether to make a guess now; one that is not made brings the next trial nearer."""
        if self._pause > 0:
            self._pause -= 1
            return False
        return True

    def judge(self, right: bool) -> None:
        """How a guess turned out."""
        self._guesses += 1
        self._right += right
        if self._guesses == TRIAL:
            if self._right < self._worth * TRIAL:
                self._pause = PAUSE
            self._guesses = self._right = 0
