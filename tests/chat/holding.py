"""What an answer is held to by its conversation, and which tokens that allows."""

from typing import Any

import numpy as np

from penstock.chat.deepseek_v4.grammar import turn_constraint
from penstock.chat.deepseek_v4.tools import marked
from penstock.chat.events import Turn
from penstock.chat.messages import Conversation, Message, Role
from penstock.chat.prompt import Prompt
from penstock.engine.constraint import Constraint
from tests.chat.reading import push_all, reply_for
from tests.engine.random_answers import constraints, tokenizer

WEATHER = {
    "name": "get_weather",
    "parameters": {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer"},
            "unit": {"type": "string", "enum": ["celsius", "kelvin"]},
        },
        "required": ["city"],
    },
}
NOW = {"name": "now"}
JOB = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


def conversation(*tools: dict[str, Any], **options: Any) -> Conversation:
    return Conversation((Message(Role.USER, "Go."),), tools, **options)


def held_by(asked: Conversation, **how: Any) -> Constraint:
    found = turn_constraint(constraints(), asked, **{"thinking": False, **how})
    assert found is not None
    return found


def ids(text: str) -> list[int]:
    """The tokens of a text of the engine's own making: markers are markers."""
    return Prompt(tuple(marked(text))).ids(tokenizer())


def turn_of(tokens: list[int], **options: Any) -> Turn:
    reply = reply_for(tokenizer(), **options)
    push_all(reply, tokenizer(), tokens)
    return reply.turn


def allows(held: Constraint, tokens: list[int]) -> bool:
    """Whether these tokens, and then the end, are possible."""
    logits = np.ones(tokenizer().vocab_size, np.float32)
    for token in (*tokens, tokenizer().eos_ids[0]):
        if held.mask(logits)[token] == -np.inf:
            return False
        held.accept(token)
    return True
