"""Questions with one right answer: about Penstock, about the small world, and small talk."""

from random import Random

from pocket.data import knowledge, world
from pocket.data.core import Dialogue, Exchange, Request, containing, dialogue, exactly
from pocket.data.grammar import capital, expand, pick


def build(rng: Random, request: Request) -> Dialogue:
    count = 1 if request.held_out else rng.choice((1, 2, 3))
    return dialogue([exchange(rng) for _ in range(count)], request)


def exchange(rng: Random) -> Exchange:
    draw = rng.random()
    if draw < 0.62:
        return about_penstock(rng)
    if draw < 0.85:
        return about_the_world(rng)
    return small_talk(rng)


_ASKS = {
    "what": (
        "What is {x}?",
        "What's {x}?",
        "Explain {x}.",
        "Tell me about {x}.",
        "Can you explain {x}?",
        "Please explain what {x} is.",
        "I do not know what {x} is.",
        "{X}?",
        "What does {x} mean?",
    ),
    "are": (
        "What are {x}?",
        "Explain {x}.",
        "Tell me about {x}.",
        "Can you explain {x}?",
        "Please explain what {x} are.",
        "{X}?",
    ),
    "how": (
        "How do I {x}?",
        "How can I {x}?",
        "How to {x}?",
        "Show me how to {x}.",
        "I want to {x}. How?",
        "What do I do to {x}?",
        "Can you tell me how to {x}?",
        "What is the way to {x}?",
    ),
    "ask": ("{X}?", "{X}?", "Tell me: {x}?", "Please tell me: {x}?", "A question: {x}?", "I wonder: {x}?"),
}


def about_penstock(rng: Random) -> Exchange:
    kind, subject, answer = knowledge.FACTS[int(rng.random() * len(knowledge.FACTS))]
    asked = expand(subject, rng)
    question = pick(_ASKS[kind], rng, {"x": asked, "X": capital(asked)})
    if rng.random() < 0.06:
        question = question.lower().rstrip("?.")
    thought = expand("The user asks [about|] ", rng).rstrip() + f": {asked}."
    return Exchange(question, answer, thought.replace(" :", ":"), exactly(answer))


def about_the_world(rng: Random) -> Exchange:
    question, answer, key = world.fact(rng)
    return Exchange(question, answer, f"A simple fact: {key}.", containing(key))


def small_talk(rng: Random) -> Exchange:
    asks, answers, thought = world.TALK[int(rng.random() * len(world.TALK))]
    expected = [expand(answer, rng) for answer in answers]
    content = rng.choice(expected)
    return Exchange(
        pick(asks, rng), content, thought, lambda answer: answer.finished and bool(answer.content.strip())
    )
