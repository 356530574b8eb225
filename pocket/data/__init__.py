"""Training data for the pocket model, made by a deterministic generator.

    >>> next(conversations(seed=1))                       # the endless training stream
    >>> sample("lookup", Random(2), length=4000)          # one conversation of one skill
    >>> problem("tools", Random(3)).check(answer)         # a held-out problem that judges an answer

Training draws from `Random("train:<seed>:<worker>")` and problems from `Random("held-out:...")`, so no stream is
shared.  Where chance alone might repeat a training example, problems are disjoint by construction: tools by a
hash of name and parameters, sums of three and more digits by a residue (see `tools` and `arithmetic`).
"""

import json
from collections.abc import Iterator
from dataclasses import replace
from random import Random

from penstock.chat.messages import Conversation, Message, Role, Thinking
from pocket.data import arithmetic, chat, facts, lists, lookup, objects, story, tools
from pocket.data.core import Answer, Dialogue, Problem, Request, Skill

__all__ = ["MIXTURE", "SKILLS", "Answer", "Problem", "Skill", "conversations", "problem", "sample"]

SKILLS: dict[str, Skill] = {
    skill.name: skill
    for skill in (
        Skill("story", story.build, 183),
        Skill("arithmetic", arithmetic.build, 86),
        Skill("copy", lists.copy, 80),
        Skill("sort", lists.sort, 90),
        Skill("count", lists.count, 62),
        Skill("reverse", lists.reverse, 80),
        Skill("lookup", lookup.build, 700),
        Skill("unstated", lookup.unstated, 700),
        Skill("tools", tools.build, 550),
        Skill("json", objects.build, 78),
        Skill("facts", facts.build, 55),
        Skill("chat", chat.build, 120),
    )
}

# Share of training tokens.  Batches add look-ups as long as their rows.
MIXTURE: dict[str, float] = {
    "story": 0.18,
    "arithmetic": 0.14,
    "copy": 0.03,
    "sort": 0.05,
    "count": 0.04,
    "reverse": 0.03,
    "lookup": 0.18,
    "tools": 0.17,
    "json": 0.04,
    "facts": 0.07,
    "chat": 0.07,
}

# Skills whose conversations fill little of a row; two or more of them follow one another in one conversation.
SHORT = ("arithmetic", "copy", "sort", "count", "reverse", "facts", "json")


def sample(
    skill: str, rng: Random, *, length: int | None = None, thinking: Thinking | None = None
) -> Conversation:
    """A complete training conversation.  `length` in tokens matters to `lookup` only."""
    return SKILLS[skill].build(rng, Request(_thinks(rng, thinking), length)).conversation


def problem(
    skill: str, rng: Random, *, length: int | None = None, thinking: Thinking | None = None
) -> Problem:
    """A held-out conversation that ends where the assistant is to speak, and the check of what it says."""
    apart = Random(f"held-out:{rng.getrandbits(64)}")
    made = SKILLS[skill].build(apart, Request(_thinks(apart, thinking), length, held_out=True))
    return _posed(made)


def conversations(seed: int, worker: int = 0) -> Iterator[Conversation]:
    """The endless training stream of one worker."""
    rng = Random(f"train:{seed}:{worker}")
    names = list(MIXTURE)
    weights = [MIXTURE[name] / SKILLS[name].mean_tokens for name in names]
    waiting: tuple[Message, ...] = ()  # short conversations that go before the next one
    while True:
        for name in rng.choices(names, weights, k=64):
            made = sample(name, rng)
            if name in SHORT and _plain(made):
                made = replace(made, messages=waiting + made.messages)
                waiting = made.messages if rng.random() < 0.55 else ()
                if waiting:
                    continue
            yield made


def _plain(conversation: Conversation) -> bool:
    """Nothing in it would be lost or change its meaning if another conversation went before."""
    first = conversation.messages[0].role is Role.USER
    return first and conversation.thinking is Thinking.OFF and conversation.response_schema is None


def _thinks(rng: Random, thinking: Thinking | None) -> bool:
    return rng.random() < 0.5 if thinking is None else thinking is not Thinking.OFF


def _posed(made: Dialogue) -> Problem:
    whole = made.conversation
    target = whole.messages[made.cut]
    calls = [(call.name, json.loads(call.arguments)) for call in target.tool_calls]
    text = target.content or json.dumps([{"name": name, "arguments": given} for name, given in calls])
    conversation = Conversation(
        whole.messages[: made.cut], whole.tools, whole.thinking, whole.encoding, whole.response_schema
    )
    return Problem(conversation, text, made.check, Answer(target.reasoning or "", target.content, calls))
