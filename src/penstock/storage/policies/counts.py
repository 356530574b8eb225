"""How often each expert was used, with old uses counting less and less."""

from math import frexp, ldexp

from penstock.storage.policies.policy import Key

HALVED_AFTER = 16  # uses per slot; short enough to follow a conversation, long enough to tell experts apart

Rank = tuple[int, float, int]
_NEVER: Rank = (0, 0.0, 0)


class Counts:
    """All counts halve each time the cache could have been filled `HALVED_AFTER` times over.

    Halving happens by making new uses worth twice as much: nothing has to be walked through, and the order of two
    keys that are not used never changes.  A count c with unit 2^h is kept as its exponent plus h and its mantissa,
    so the unit may double for ever without overflow, and these pairs compare as the counts do.
    """

    def __init__(self, slots: int):
        self.period = HALVED_AFTER * slots
        self._now = 0  # uses so far
        self._next_halving = self.period
        self._halvings = 0
        self._ranks: dict[Key, Rank] = {}

    def use(self, key: Key) -> None:
        if self._now >= self._next_halving:
            self._halvings += 1
            self._next_halving = self._now + self.period
        self._now += 1
        exponent, mantissa, _ = self._ranks.get(key, _NEVER)
        mantissa, exponent = frexp(ldexp(mantissa, exponent - self._halvings) + 1)
        self._ranks[key] = (exponent + self._halvings, mantissa, self._now)

    def rank(self, key: Key) -> Rank:
        """Orders keys by count, and keys with equal counts by their last use.  Only ever rises."""
        return self._ranks[key]

    def exceeds(self, key: Key, other: Key) -> bool:
        """Whether `key` was used more; the last use does not matter."""
        return self._ranks[key][:2] > self._ranks[other][:2]

    def resize(self, slots: int) -> None:
        self.period = HALVED_AFTER * slots
