"""Whether drafts ever make decoding slower, for as long as a window of tokens lasts."""

from collections.abc import Sequence
from itertools import accumulate, chain
from statistics import median
from typing import Final

WINDOW: Final = 256  # tokens
EVERY: Final = 8  # tokens, from one window to the next


def worst_window(plain: Sequence[Sequence[float]], drafted: Sequence[Sequence[float]]) -> float:
    """How many times as fast the same tokens are with drafts, in the window where that is least.  Both: seconds of
    every token, round by round.

    Rounds have the same text, one after another, so that a window may begin in one and end in another, and each comes
    as often as there are rounds.  Its median counts: a disturbance hits it once, a loss that the gate allows every
    time.

    >>> slow = [1.0] * 304 + [1.25] * 256 + [1.0] * 300
    >>> worst_window([[1.0] * 860] * 3, [slow] * 3)
    0.8
    >>> worst_window([[1.0] * 100] * 9, [[0.5] * 100] * 9)
    2.0
    """
    both = zip(_windows(plain), _windows(drafted), strict=True)
    return min(one / other for one, other in both)


def _windows(rounds: Sequence[Sequence[float]]) -> list[float]:
    """Seconds of each window, by where in the text it begins."""
    length, ends = len(rounds[0]), [0.0, *accumulate(chain.from_iterable(rounds))]
    last = len(ends) - 1 - WINDOW
    if last < 0:
        raise ValueError(f"{len(ends) - 1} tokens in all are less than a window of {WINDOW}")
    return [
        median(ends[at + WINDOW] - ends[at] for at in range(first, last + 1, length))
        for first in range(0, min(length, last + 1), EVERY)
    ]
