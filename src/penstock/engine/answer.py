"""One answer of a session by itself: the loop behind `Engine.generate`."""

from collections.abc import Iterator

from penstock.backend.base import Logits
from penstock.engine.session import Session
from penstock.engine.speculation import Speculator, verify
from penstock.engine.step_watch import StepWatch
from penstock.engine.steps import Generation, Step


def answer(session: Session, generation: Generation) -> Iterator[Step]:
    """The tokens after a prompt that the session has read, until the generation is over."""
    speculation = session.engine.speculation
    steps = [_next(session, generation)]
    speculator = speculation.begin(generation) if speculation else None
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
        steps = _advance(session, token, generation, speculator)


def _next(session: Session, generation: Generation, eager: bool = False) -> Step:
    """The token after what the session has read.  The step after it may begin already, unless drafts are expected
    for it."""
    assert session.last_logits is not None
    generation.start(session.last_logits)
    if generation.sampler.choosing is not None and not eager:
        session.engine.stepper.run_ahead([generation])
    return generation.next(session.last_logits)


def _advance(
    session: Session, token: int, generation: Generation, speculator: Speculator | None
) -> list[Step]:
    """One step: the tokens that follow `token`, which is fed, perhaps with drafts after it."""
    stepper, ids, begun = session.engine.stepper, [token], False
    if speculator is not None:
        begun = not speculator.rests and stepper.has_begun([session])
        ids += speculator.propose(session, token, 1, begun)
    stepper.expect(generation, len(ids))
    if speculator is None or not speculator.awake:
        stepper.feed([(session, ids)], "kept")
        return [_next(session, generation)]
    speculation, position, steps = session.engine.speculation, session.position, list[Step]()
    assert speculation is not None
    watch = StepWatch(stepper)

    def judge(_: int, logits: Logits) -> int:
        steps.extend(verify(generation, ids, logits, position))
        return len(steps)

    if len(ids) == 1:
        stepper.feed([(session, ids)], "kept")
        steps.append(_next(session, generation, speculator.eager))
    else:
        stepper.advance([(session, ids, len(ids))], judge=judge)
    speculation.told(1, len(ids), len(steps), watch.spent(), begun)
    speculator.judged(session, [step.token for step in steps])
    return steps
