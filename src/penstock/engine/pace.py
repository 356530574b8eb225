"""How much of a prompt goes into a step while others decode."""

from typing import Final

SMALLEST: Final = 8  # tokens, however slow reading is: fewer cost nearly as much
FIRST: Final = 16  # tokens, before anything is known
# Weights of the latest step in the average.  A step may be slow by chance, not fast: a request that arrives disturbs
# the very steps before it is read.
FALLING: Final = 0.2
RISING: Final = 0.03
FARTHEST: Final = 2.0  # by which a step may change the size


class Pace:
    """Keeps the pieces of prompts such that reading one takes as long as the decoding beside it: who decodes keeps at
    least half the pace.  A large piece is cheaper by the token than a small one, so the size is found by trying."""

    def __init__(self) -> None:
        self.piece = float(FIRST)
        self._decoding = 0.0  # seconds of a step without any reading

    def decoded(self, seconds: float) -> None:
        """A step in which nobody read."""
        before = self._decoding or seconds
        self._decoding = before + (RISING if seconds > before else FALLING) * (seconds - before)

    def read(self, tokens: int, seconds: float) -> None:
        """A step in which some decoded, and so many tokens were read."""
        if self._decoding == 0 or tokens < int(
            self.piece
        ):  # nothing to compare with, or not for want of room
            return
        ratio = self._decoding / max(seconds - self._decoding, 1e-9)
        self.piece = max(float(SMALLEST), self.piece * min(FARTHEST, max(1 / FARTHEST, ratio)) ** 0.5)

    def room(self, chunk: int) -> int:
        """Tokens that may be read in the next step, of the `chunk` that fits one."""
        self.piece = min(self.piece, float(max(chunk, SMALLEST)))
        return min(chunk, int(self.piece))
