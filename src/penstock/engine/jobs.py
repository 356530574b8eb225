"""Tokens that sessions have yet to read, more than a step takes."""

import operator
from collections.abc import Sequence

import numpy as np

from penstock.backend.base import Logits
from penstock.engine.session import Session
from penstock.errors import TokenError


class Job:
    """One session's tokens on their way through a `feed`."""

    def __init__(self, session: Session, ids: list[int]):
        self.session, self.ids, self.done = session, ids, 0
        self.parts: list[Logits] = []

    @property
    def left(self) -> int:
        return len(self.ids) - self.done

    def rows(self, ids: list[int], logits: str) -> int:
        """How many of these, which are next, have logits."""
        return {"none": 0, "all": len(ids)}.get(logits, int(self.left == len(ids)))

    def keep(self, logits: Logits | None) -> None:
        if logits is not None:
            # The next step may change what lies on a device.
            self.parts.append(np.asarray(logits) if self.left else logits)

    def result(self, logits: str) -> Logits | None:
        """What `Engine.feed` returns for this session."""
        if logits in ("none", "kept"):
            return None
        found = self.parts[-1][-1] if logits == "last" else np.concatenate(self.parts)
        return np.asarray(found)


def first_tokens(jobs: list[Job], room: int) -> list[tuple[Job, list[int]]]:
    """As many waiting tokens as there is room for, first sessions first."""
    taken: list[tuple[Job, list[int]]] = []
    for job in jobs:
        ids = job.ids[job.done : job.done + room]
        if ids:
            taken.append((job, ids))
            room -= len(ids)
    return taken


def checked_ids(ids: Sequence[int], vocab_size: int) -> list[int]:
    try:
        tokens = [operator.index(token) for token in ids]
    except TypeError as error:
        raise TokenError(f"token ids must be whole numbers: {error}") from None
    if not tokens:
        raise TokenError("there are no tokens to feed")
    for token in tokens:
        if not 0 <= token < vocab_size:
            raise TokenError(f"token id {token} is outside the vocabulary of {vocab_size:,}")
    return tokens
