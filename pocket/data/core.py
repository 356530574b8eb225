"""What a skill produces: dialogues that train, and problems that can be checked."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any

from penstock.chat.messages import Conversation, Message, Role, Thinking


@dataclass(frozen=True, slots=True)
class Answer:
    """What a model said in one turn.  `finished` means that it ended the turn itself."""

    reasoning: str = ""
    content: str = ""
    tool_calls: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    finished: bool = True


Check = Callable[[Answer], bool]


@dataclass(frozen=True, slots=True)
class Exchange:
    """One question and its answer.  `reasoning` is shown only when thinking is on."""

    question: str
    content: str
    reasoning: str
    check: Check


@dataclass(frozen=True, slots=True)
class Request:
    """What is asked of a skill.  `length` is the wanted number of tokens, for skills that can stretch."""

    thinking: bool = False
    length: int | None = None
    held_out: bool = False


@dataclass(frozen=True, slots=True)
class Dialogue:
    """A complete conversation; `messages[cut]` is the assistant turn that `check` judges."""

    conversation: Conversation
    cut: int
    check: Check


@dataclass(frozen=True, slots=True)
class Problem:
    """A conversation that waits for the assistant.  `answer` is the reference as text, `reference` in full."""

    conversation: Conversation
    answer: str
    check: Check
    reference: Answer


@dataclass(frozen=True, slots=True)
class Skill:
    """`mean_tokens` turns a share of tokens into a share of conversations."""

    name: str
    build: Callable[[Random, Request], Dialogue]
    mean_tokens: float


def dialogue(
    exchanges: list[Exchange],
    request: Request,
    *,
    system: str = "",
    response_schema: Mapping[str, Any] | None = None,
) -> Dialogue:
    """The exchanges one after the other; the last one is judged."""
    messages = [Message(Role.SYSTEM, system)] if system else []
    for exchange in exchanges:
        messages.append(Message(Role.USER, exchange.question))
        messages.append(said(exchange.content, exchange.reasoning, request))
    conversation = Conversation(tuple(messages), thinking=mode(request), response_schema=response_schema)
    return Dialogue(conversation, len(messages) - 1, exchanges[-1].check)


def said(content: str, reasoning: str, request: Request) -> Message:
    return Message(Role.ASSISTANT, content, reasoning=reasoning if request.thinking else None)


def mode(request: Request) -> Thinking:
    return Thinking.HIGH if request.thinking else Thinking.OFF


def exactly(expected: str) -> Check:
    return lambda answer: answer.finished and answer.content.strip() == expected


def containing(*parts: str) -> Check:
    wanted = [part.lower() for part in parts]
    return lambda answer: answer.finished and all(part in answer.content.lower() for part in wanted)


def number(expected: int) -> Check:
    """The last number of the answer is the expected one."""

    def check(answer: Answer) -> bool:
        found = re.findall(r"-?\d+", answer.content)
        return answer.finished and bool(found) and int(found[-1]) == expected

    return check
