"""Lets a model answer problems, several at a time."""

import json
from collections.abc import Sequence

from penstock.chat.parse import Parser
from penstock.chat.render import render
from penstock.chat.token_parser import TokenParser
from penstock.chat.turn import Turn
from penstock.engine.engine import Engine
from penstock.engine.sampling import Sampling
from pocket.data import Answer, Problem

GREEDY = Sampling(temperature=0)
TOGETHER = 16  # problems that share each step


class _Attempt:
    """One problem on its way to an answer."""

    def __init__(self, engine: Engine, problem: Problem, max_tokens: int):
        prompt = render(problem.conversation)
        self.ids = prompt.ids(engine.tokenizer)
        self.session = engine.session()
        self.generation = engine.generation(self.session, self.ids, max_tokens, GREEDY)
        tools = bool(problem.conversation.tools)
        self.parser = TokenParser(engine.tokenizer, Parser(thinking=prompt.thinking, tools=tools))
        self.turn = Turn(thinking=prompt.thinking)
        self.reason: str | None = None
        self.tokens: list[int] = []

    def advance(self, logits: object) -> None:
        step = self.generation.next(logits)  # type: ignore[arg-type]
        self.tokens.append(step.token)
        self.turn.add(self.parser.push(step.token))
        self.reason = "stop" if self.parser.finished else step.finish_reason
        if self.reason is not None:
            self.turn.add(self.parser.finish(self.reason))

    def answer(self) -> Answer:
        calls = [(call.name, json.loads(call.arguments)) for call in self.turn.calls]
        ended = self.reason == "stop"
        return Answer("".join(self.turn.reasoning), "".join(self.turn.content), calls, finished=ended)


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
            waiting = [(a, a.tokens[-1:]) for a, _ in waiting if a.reason is None]
        result.extend(attempt.answer() for attempt in attempts)
    return result
