"""A drafter for measurements: it knows the text that is to come, and is wrong as often as it is told."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from random import Random
from typing import Any
from unittest.mock import patch

from penstock.engine import speculation
from penstock.engine.drafters import Draft, Drafter, DSparkDrafter


class ForcedDrafter(Drafter):
    """text: all tokens of a session, those of the answer included.  A draft is right with the chance `right`,
    whatever happened to those before it; which ones are follows from their places, the same every time."""

    name, free = "ngram", True

    def __init__(self, text: Sequence[int], right: float):
        self._text, self.said = text, 0  # said: how many of them
        chance = Random(1)
        self._right = [chance.random() < right for _ in text]

    def push(self, tokens: Sequence[int]) -> None:
        self.said += len(tokens)

    def propose(self, _session: Any, _token: int, most: int, _least: float) -> list[Draft]:
        places = range(self.said, min(self.said + most, len(self._text)))
        # The next token's id stands for any that is wrong.
        return [Draft(self._text[at] if self._right[at] else self._text[at] ^ 1, 0) for at in places]


class ForcedModule(ForcedDrafter):
    """Takes the time of the model's DSpark module besides, whose own guesses are not used."""

    name, free = "dspark", False

    def __init__(self, text: Sequence[int], right: float):
        super().__init__(text, right)
        self._module = DSparkDrafter()

    def keep_up(self, session: Any, wanted: bool) -> None:
        self._module.keep_up(session, wanted)

    def propose(self, session: Any, token: int, most: int, _least: float) -> list[Draft]:
        made = self._module.propose(session, token, most, 0.0)
        return super().propose(session, token, len(made), 0.0)


@contextmanager
def forced(text: Sequence[int], right: float, drafter: str = "ngram") -> Iterator[None]:
    """Meanwhile what follows is guessed by a `ForcedDrafter`, and not by who is called so."""
    name, kind = {"ngram": ("NgramDrafter", ForcedDrafter), "dspark": ("DSparkDrafter", ForcedModule)}[
        drafter
    ]
    with patch.object(speculation, name, lambda: kind(text, right)):
        yield
