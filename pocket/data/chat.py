"""Conversations of several turns: the other skills mixed, things to remember, and rules to obey."""

from collections.abc import Callable
from dataclasses import replace
from random import Random

from pocket.data import arithmetic, facts, lists, objects, story
from pocket.data.core import Answer, Check, Dialogue, Exchange, Request, containing, dialogue
from pocket.data.grammar import expand, pick

Rule = Callable[[Exchange], Exchange]


def build(rng: Random, request: Request) -> Dialogue:
    draw = rng.random()
    if draw < 0.45:
        return dialogue(_remembering(rng, request), request, system=_plain_system(rng))
    if draw < 0.8:
        system, rule = _rule(rng)
        turns = [rule(_small(rng, request)) for _ in range(rng.randrange(1, 4))]
        return dialogue(turns, request, system=system)
    turns = [_turn(rng, request) for _ in range(rng.randrange(2, 6))]
    return dialogue(turns, request, system=_plain_system(rng))


def _plain_system(rng: Random) -> str:
    if rng.random() < 0.6:
        return ""
    return pick(
        (
            "You are a helpful assistant.",
            "You are Pocket, a small model.",
            "Be brief and friendly.",
            "Help the user.",
        ),
        rng,
    )


def _turn(rng: Random, request: Request) -> Exchange:
    if rng.random() < 0.12:
        return story.exchange(rng)
    return _small(rng, request)


def _small(rng: Random, request: Request) -> Exchange:
    kind = rng.randrange(6)
    if kind == 0:
        return arithmetic.exchange(rng, request)
    if kind == 1:
        return rng.choice((lists.sorting, lists.counting, lists.choosing, lists.copying))(rng)
    if kind == 2:
        return objects.exchange(rng)
    if kind == 3:
        return facts.small_talk(rng)
    return facts.exchange(rng)


# What the user tells, how it is acknowledged, and how it is asked for later.
_MEMORIES: tuple[tuple[str, str, str, str, str], ...] = (
    ("name", "[My name is {v}.|I am {v}.|Hello, I am {v}!|Call me {v}.]", "[Nice to meet you|Hello], {v}!",
     "[What is my name?|What did I say my name was?|Do you remember my name?|Who am I?]", "Your name is {v}."),
    ("town", "I live in {v}.", "{v} is a nice place.",
     "[Where do I live?|Which city do I live in?|Do you remember where I live?]", "You live in {v}."),
    ("food", "[I like {v}.|My favourite food is {v}.|I love {v}.]", "I will remember that you like {v}.",
     "[What do I like to eat?|What is my favourite food?|What food do I like?]", "You like {v}."),
    ("animal", "[I have a {v}.|My pet is a {v}.]", "A {v} is a good friend.",
     "[What pet do I have?|Which animal do I have?|What is my pet?]", "You have a {v}."),
    ("job", "[I am a {v}.|I work as a {v}.]", "That is a good job.",
     "[What is my job?|What do I work as?|What did I say my job was?]", "You are a {v}."),
    ("colour", "[My favourite colour is {v}.|I like the colour {v} best.]", "{V} is a pretty colour.",
     "[What is my favourite colour?|Which colour do I like best?]", "Your favourite colour is {v}."),
    ("code", "[Remember the number {v}.|My number is {v}.|Keep this number: {v}.]", "I will remember {v}.",
     "[What was the number?|What number did I give you?|Tell me my number.]", "The number is {v}."),
)  # fmt: skip


def _remembering(rng: Random, request: Request) -> list[Exchange]:
    """Facts are told first; other turns come between; then some are asked for."""
    memories = rng.sample(_MEMORIES, rng.randrange(1, 4))
    told, asked = [], []
    for slot, tell, note, ask, recall in memories:
        value = str(rng.randrange(1000, 10000)) if slot == "code" else expand(f"{{{slot}}}", rng)
        values = {"v": value, "V": value.capitalize()}
        thought = expand(f"The user tells me the {slot}: {{v}}.", rng, values)
        told.append(
            Exchange(expand(tell, rng, values), expand(note, rng, values), thought, containing(value))
        )
        thought = expand("The user said it before: {v}.", rng, values)
        asked.append(
            Exchange(expand(ask, rng, values), expand(recall, rng, values), thought, containing(value))
        )
    rng.shuffle(asked)
    between = [_small(rng, request) for _ in range(rng.randrange(0, 3))]
    return told + between + asked


def _rule(rng: Random) -> tuple[str, Rule]:
    """A system prompt and what it does to an answer."""
    style = rng.randrange(6)
    if style == 0:
        system = pick(
            (
                "Answer in capital letters.",
                "Write everything in upper case.",
                "ALWAYS SHOUT: use capital letters only.",
            ),
            rng,
        )
        return system, lambda turn: _changed(turn, turn.content.upper())
    if style == 1:
        word = expand("[{animal}|{fruit}|{thing}|over|done|please|indeed]", rng)
        system = pick(
            (
                'End every answer with the word "{w}".',
                "Always end with {w}.",
                "The last word of each answer is {w}.",
            ),
            rng,
            {"w": word},
        )
        return system, lambda turn: _changed(turn, f"{turn.content} {word}")
    if style == 2:
        greeting = rng.choice(("Hello!", "Ahoy!", "Good day!", "Greetings!", "Hi!"))
        system = pick(
            ('Begin every answer with "{g}"', "Always greet first with: {g}", "Start each answer with {g}"),
            rng,
            {"g": greeting},
        )
        return system, lambda turn: _changed(turn, f"{greeting} {turn.content}")
    if style == 3:
        system = pick(("You are a pirate.", "Talk like a pirate.", "You are a pirate captain."), rng)
        return system, lambda turn: _changed(turn, f"Arr, matey! {turn.content}")
    if style == 4:
        system = pick(
            ("Answer in lower case.", "Write only small letters.", "Never use capital letters."), rng
        )
        return system, lambda turn: _changed(turn, turn.content.lower())
    name = expand("{name}", rng)
    system = pick(
        (
            "The user is called {n}. Use the name in each answer.",
            "Address the user as {n}.",
            "Begin every answer with the name {n}.",
        ),
        rng,
        {"n": name},
    )
    return system, lambda turn: _changed(turn, f"{name}, {turn.content}")


def _changed(turn: Exchange, content: str) -> Exchange:
    return replace(turn, content=content, check=_says(content))


def _says(content: str) -> Check:
    """Style and answer both: compared without regard to spaces."""
    wanted = content.split()

    def check(answer: Answer) -> bool:
        return answer.finished and answer.content.split() == wanted

    return check
