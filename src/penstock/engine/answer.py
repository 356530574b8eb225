"""One answer of a session by itself: the loop behind `Engine.generate`."""

from collections.abc import Iterator

from penstock.backend.base import Logits
from penstock.engine.session import Session
from penstock.engine.speculation import Speculator, StepWatch, verify
from penstock.engine.steps import Generation, Step


def answer(session: Session, generation: Generation) -> Iterator[Step]:
    """The tokens after a prompt that the session has read, until the generation is over."""
    speculation = session.engine.speculation
    steps = [_next(session, generation)]
    speculator = speculation.begin([*session.tokens, steps[0].token]) if speculation else None
    while True:
        told = 0
        try:
            for step in steps:
                told += 1
                yield step
        finally:
            session.rewind(len(steps) - told)  # who stops listening has a session that ends there
        if steps[-1].finish_reason is not None:
            return
        token = steps[-1].token
        if speculator is None:
            session.engine.stepper.feed([(session, [token])], "kept")
            steps = [_next(session, generation)]
        else:
            steps = _speculate(session, token, generation, speculator)


def _next(session: Session, generation: Generation) -> Step:
    """The token after what the session has read.  Where nobody drafts, the step after it may begin already."""
    assert session.last_logits is not None
    generation.start(session.last_logits)
    if session.engine.speculation is None:
        session.engine.stepper.run_ahead([generation])
    return generation.next(session.last_logits)


def _speculate(session: Session, token: int, generation: Generation, speculator: Speculator) -> list[Step]:
    """One step: the tokens that follow `token`, which is fed with drafts after it."""
    speculation, stepper, position = session.engine.speculation, session.engine.stepper, session.position
    assert speculation is not None
    ids = [token, *speculator.propose(session, token, 1, stepper.draft_room(1, position + 1))]
    steps: list[Step] = []

    def judge(_: int, logits: Logits) -> int:
        steps.extend(verify(generation, ids, logits, position))
        return len(steps)

    watch = StepWatch(stepper)
    stepper.advance([(session, ids, len(ids))], judge=judge)
    speculation.told(1, len(ids), len(steps), watch.spent())
    speculator.judged([step.token for step in steps])
    return steps
