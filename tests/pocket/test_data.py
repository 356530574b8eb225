"""The generator: deterministic, well-formed, and its checks tell right from wrong."""

import itertools
import json
import re
from dataclasses import replace
from random import Random

import pytest

from penstock.chat.messages import Conversation, Role, Thinking
from pocket.data import (
    MIXTURE,
    SKILLS,
    Answer,
    arithmetic,
    conversations,
    knowledge,
    lookup,
    problem,
    sample,
    story,
)
from pocket.vocabulary import text_of

EVERY_SKILL = pytest.mark.parametrize("skill", list(SKILLS))


def test_the_same_seed_gives_the_same_conversations() -> None:
    first, again = (list(itertools.islice(conversations(5, worker=2), 100)) for _ in range(2))
    assert first == again
    assert first != list(itertools.islice(conversations(5, worker=3), 100))


def test_the_mixture_is_a_share_of_every_skill() -> None:
    assert set(MIXTURE) == set(SKILLS) - {"unstated"}
    assert sum(MIXTURE.values()) == pytest.approx(1)


@EVERY_SKILL
@pytest.mark.parametrize("thinking", [Thinking.OFF, Thinking.HIGH])
def test_conversations_are_well_formed(skill: str, thinking: Thinking) -> None:
    for seed in range(60):
        check_form(sample(skill, Random(seed), length=300, thinking=thinking), thinking)


def check_form(conversation: Conversation, thinking: Thinking) -> None:
    assert conversation.thinking is thinking
    turns = [message.role for message in conversation.messages if message.role is not Role.SYSTEM]
    compact = [role for role, _ in itertools.groupby(turns)]
    assert compact[0] is Role.USER
    assert compact[-1] is Role.ASSISTANT
    waiting: list[str] = []
    for before, message in itertools.pairwise(conversation.messages):
        if message.role is Role.ASSISTANT:
            assert before.role in (Role.USER, Role.TOOL)
            assert not waiting
            assert message.content.strip() or message.tool_calls
            assert bool(message.reasoning) == (thinking is Thinking.HIGH)
            waiting = [call.id for call in message.tool_calls]
            for call in message.tool_calls:
                offered = {tool["name"]: tool["parameters"] for tool in conversation.tools}
                arguments = json.loads(call.arguments)
                assert set(offered[call.name]["required"]) <= set(arguments)
                assert set(arguments) <= set(offered[call.name]["properties"])
        elif message.role is Role.TOOL:
            assert message.tool_call_id == waiting.pop(0)
    text = "\n".join(text_of(conversation))
    assert not re.search(r"[{]\w+[}]", text), text


@EVERY_SKILL
def test_checks_accept_the_reference_and_reject_another_answer(skill: str) -> None:
    for seed in range(60):
        posed = problem(skill, Random(seed), length=300)
        assert posed.conversation.messages[-1].role in (Role.USER, Role.TOOL)
        assert posed.check(posed.reference), posed
        assert not posed.check(Answer(content=""))
        assert not posed.check(replace(posed.reference, finished=False))


def test_column_procedures_end_in_the_result() -> None:
    rng = Random(1)
    for _ in range(2000):
        a, b, digit = rng.randrange(10_000), rng.randrange(10_000), rng.randrange(10)
        assert arithmetic.add(a, b).endswith(f". {a + b}")
        assert arithmetic.subtract(a, b).endswith(f". {a - b}")
        assert arithmetic.multiply(a, digit).endswith(f". {a * digit}")
        for text, result in ((arithmetic.add(a, b), a + b), (arithmetic.multiply(a, digit), a * digit)):
            assert int(re.findall(r"\((\d+)\)", text)[-1]) == result
        for text in (arithmetic.add(a, b), arithmetic.subtract(a, b), arithmetic.multiply(a, digit)):
            for left, right in re.findall(r"(\d[\d +*-]*) = (\d+)", text):
                assert eval(left) == int(right), text


@pytest.mark.parametrize("length", [300, 1000, 3000, 7000])
def test_lookup_meets_its_length(length: int) -> None:
    sizes = []
    for seed in range(8):
        conversation = sample("lookup", Random(seed), length=length)
        sizes.append(sum(lookup.tokens(text) + 2 for text in text_of(conversation)))
    assert abs(sum(sizes) / len(sizes) - length) < 0.15 * length
    assert max(abs(size - length) for size in sizes) < 0.3 * length


def test_held_out_tools_never_occur_in_training() -> None:
    def keys(conversation: Conversation) -> set[tuple[str, ...]]:
        return {(tool["name"], *sorted(tool["parameters"]["properties"])) for tool in conversation.tools}

    trained = set().union(*(keys(sample("tools", Random(seed))) for seed in range(500)))
    for seed in range(100):
        posed = problem("tools", Random(seed))
        calls = [call for message in posed.conversation.messages for call in message.tool_calls]
        names = {name for name, _ in posed.reference.tool_calls} | {call.name for call in calls}
        assert not {key for key in keys(posed.conversation) if key[0] in names} <= trained


def test_stories_have_many_words_and_three_sentences_are_three() -> None:
    found: set[str] = set()
    for seed in range(2000):
        told = story.exchange(Random(seed))
        found.update(re.findall(r"[a-z]+", told.content.lower()))
        if "three sentences" in told.question:
            assert story.sentences(told.content) == 3
    assert len(found) >= 2000


def test_there_are_enough_facts_about_penstock() -> None:
    assert len(knowledge.FACTS) >= 250
    assert len({(kind, subject) for kind, subject, _ in knowledge.FACTS}) == len(knowledge.FACTS)
