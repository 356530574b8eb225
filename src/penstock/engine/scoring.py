"""Scoring of prompts: how likely the model finds tokens that are given, a few rows of logits at a time."""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from penstock.engine.engine import Engine
from penstock.engine.requests import Failed, Scored, Work
from penstock.engine.steps import Step
from penstock.errors import PenstockError

MAX_ROWS: Final = 64  # that are scored in a step


def score_rows(engine: Engine) -> int:
    """How many rows are scored in a step."""
    return min(MAX_ROWS, engine.stepper.logit_rows)


def score_prompt(work: Work, logits: NDArray[np.float32] | None) -> Scored | Failed | None:
    """What the logits say of the tokens that follow in the prompt, if it is scored."""
    slot, request = work.slot, work.slot.request
    if not work.scores or logits is None or request.score is None:
        return None
    logits, end = np.asarray(logits), slot.session.position  # of the host
    following = request.prompt[end - len(work.ids) + 1 : end + 1]  # the last token of the prompt has none
    try:
        steps = [score(row, token, request.score) for row, token in zip(logits, following, strict=False)]
    except PenstockError as error:
        return Failed(error)
    return Scored(steps, last=slot.generation is None and len(work.ids) == len(slot.pending))


def score(logits: NDArray[np.float32], token: int, alternatives: int) -> Step:
    """How likely the model finds a token that is given: its log-probability, and the likeliest tokens in its place.
    logits [vocab]: those that predict it"""
    scores = logits.astype(np.float64)
    highest = scores.max()
    if not np.isfinite(highest):
        raise PenstockError("the model produced logits that are not finite; its weights may be damaged")
    scores -= highest
    scores -= np.log(np.exp(scores).sum())
    best: list[int] = []
    if alternatives:
        best = np.argpartition(-scores, alternatives)[:alternatives].tolist()
        best.sort(key=lambda other: (-scores[other], other))
    return Step(token, float(scores[token]), "", [(other, float(scores[other])) for other in best])
