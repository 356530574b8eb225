"""Lets a model answer problems, several at a time."""

import json
from collections.abc import Sequence

from penstock.chat.driver import ChatDriver
from penstock.engine.engine import Engine
from penstock.engine.sampling import Sampling
from pocket.data import Answer, Problem

GREEDY = Sampling(temperature=0)
TOGETHER = 16  # problems that share each step


class _Attempt:
    """One problem on its way to an answer."""

    def __init__(self, engine: Engine, problem: Problem, max_tokens: int):
        self.reply = ChatDriver(engine).reply(problem.conversation, GREEDY)
        self.ids = self.reply.prompt.ids
        self.session = engine.session()
        self.generation = engine.generation(self.session, self.ids, max_tokens, self.reply.sampling)

    def advance(self, logits: object) -> None:
        self.reply.push(self.generation.next(logits))  # type: ignore[arg-type]

    def answer(self) -> Answer:
        turn = self.reply.turn
        calls = [(call.name, json.loads(call.arguments)) for call in turn.calls]
        ended = turn.finish_reason != "length"
        return Answer("".join(turn.reasoning), "".join(turn.content), calls, finished=ended)


def answers(engine: Engine, problems: Sequence[Problem], max_tokens: int = 400) -> list[Answer]:
    """Greedy answers, in order."""
    result: list[Answer] = []
    for at in range(0, len(problems), TOGETHER):
        attempts = [_Attempt(engine, problem, max_tokens) for problem in problems[at : at + TOGETHER]]
        waiting = [(attempt, attempt.ids) for attempt in attempts]
        while waiting:
            logits = engine.feed([(attempt.session, ids) for attempt, ids in waiting])
            for (attempt, _), row in zip(waiting, logits, strict=True):
                attempt.advance(row)
            waiting = [(a, a.reply.tokens[-1:]) for a, _ in waiting if not a.reply.finished]
        result.extend(attempt.answer() for attempt in attempts)
    return result
