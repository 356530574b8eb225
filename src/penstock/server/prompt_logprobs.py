"""How likely the model finds a given text, token by token."""

import threading
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from penstock.engine.engine import Engine
from penstock.engine.steps import Step
from penstock.errors import ContextLengthError

PIECE: Final = 64  # tokens at a time: their logits are held together, and other requests go on in between


def prompt_logprobs(
    engine: Engine, ids: Sequence[int], alternatives: int, given_up: threading.Event
) -> list[Step]:
    """A step for each token after the first, which nothing predicts: its log-probability and the likeliest tokens
    in its place.  Waits for the engine, so not for an event loop; ends early once `given_up` is set."""
    if len(ids) > engine.context:
        raise ContextLengthError(f"{len(ids):,} tokens do not fit into a context of {engine.context:,}")
    session = engine.session()
    steps: list[Step] = []
    for begin in range(0, len(ids) - 1, PIECE):
        if given_up.is_set():
            break
        piece = ids[begin : begin + PIECE]
        logits = session.feed(piece, logits="all")  # [piece, vocab]
        assert logits is not None
        following = ids[begin + 1 : begin + 1 + len(piece)]
        for row, token in zip(logits, following, strict=False):
            steps.append(_scored(row, token, alternatives))
    return steps


def _scored(row: NDArray[np.float32], token: int, alternatives: int) -> Step:
    """row [vocab]: the logits that predict `token`"""
    scores = row.astype(np.float64)
    scores -= scores.max()
    scores -= np.log(np.exp(scores).sum())
    best: list[int] = []
    if alternatives:
        best = np.argpartition(-scores, alternatives)[:alternatives].tolist()
        best.sort(key=lambda other: (-scores[other], other))
    return Step(token, float(scores[token]), "", [(other, float(scores[other])) for other in best])
