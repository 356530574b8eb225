"""Finding a fact in a long text: registries full of codes, or a few facts among sentences that do not matter."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from pocket.data import words
from pocket.data.core import Dialogue, Exchange, Request, containing, dialogue
from pocket.data.grammar import capital, expand, pick

UNKNOWN = "I don't know."
_PIECE = re.compile(r"[A-Za-z]+|[^A-Za-z\s]| (?=\d)|\n")


def tokens(text: str) -> float:
    """About how many tokens the pocket vocabulary makes of a text: digits one each, most words one."""
    return 1.05 * len(_PIECE.findall(text))


@dataclass(frozen=True, slots=True)
class Fact:
    """`statement` and `update` are sentences, `row` a line of a registry."""

    statement: str
    update: str
    row: str
    question: str
    value: str


def build(rng: Random, request: Request) -> Dialogue:
    length = request.length or some_length(rng)
    haystack, updated, stock, room = _haystack(rng, length, 36 if request.thinking else 23)
    asked = max(1, min(len(haystack), room if not request.held_out else 1))
    # Uniform over the text: each question takes a fact from its own part, in random order.
    chosen = [haystack[int((part + rng.random()) * len(haystack) / asked)] for part in range(asked)]
    rng.shuffle(chosen)
    if updated and rng.random() < 0.5:
        chosen[rng.randrange(asked)] = rng.choice(updated)
    latest = {fact.question: fact for fact in haystack + updated}
    exchanges = [_ask(rng, latest[fact.question]) for fact in chosen]
    if rng.random() < 0.12:
        missing = next(fact for fact in iter(lambda: _new_fact(rng), None) if fact.question not in latest)
        at = rng.randrange(asked)
        exchanges[at] = Exchange(
            missing.question, UNKNOWN, "The text does not say it.", containing("don't know")
        )
    return _told(rng, request, stock, exchanges)


def _told(rng: Random, request: Request, text: str, exchanges: list[Exchange]) -> Dialogue:
    first = exchanges[0]
    style = rng.random()
    if style < 0.15:
        return dialogue(exchanges, request, system=f"{pick(_INTROS, rng)}\n{text}")
    if style < 0.25:
        question = f"{first.question}\n{text}"
    elif style < 0.6:
        question = f"{text}\n\n{first.question}"
    else:
        question = f"{pick(_INTROS, rng)}\n{text}\n\n{first.question}"
    exchanges[0] = Exchange(question, first.content, first.reasoning, first.check)
    return dialogue(exchanges, request)


_INTROS = (
    "Read this text.",
    "Here is a list.",
    "Read [the following|this] and answer[ my questions|].",
    "Remember these facts.",
    "Use this text to answer.",
    "These are my notes:",
)


def some_length(rng: Random) -> int:
    """Log-uniform: as many conversations between 100 and 200 tokens as between 1,000 and 2,000."""
    return int(90 * 2 ** (rng.random() * (4.2 if rng.random() < 0.8 else 6.25)))


def _haystack(rng: Random, length: int, turn: int) -> tuple[list[Fact], list[Fact], str, int]:
    """The facts, the updates among them, the text, and how many questions of `turn` tokens to ask about it."""
    questions = rng.randrange(1, 5) if length < 250 else rng.randrange(6, 20)
    questions = max(1, min(questions, length // (4 * turn)))
    budget = length - turn * questions - 8
    dense = rng.random() < 0.7
    density = rng.uniform(0.6, 1.0) if dense else rng.uniform(0.02, 0.25)
    makers = rng.sample(_FACTS, rng.randrange(1, 4))
    rows = dense and rng.random() < 0.4
    joint = "\n" if rows or rng.random() < 0.5 else " "
    facts: dict[str, Fact] = {}
    updates: dict[str, Fact] = {}
    lines: list[str] = []
    used = 0.0
    while used < budget + turn * max(0, questions - len(facts)) or not facts:
        if rng.random() < density or (not facts and used > budget / 2):
            fact = makers[int(rng.random() * len(makers))](rng)
            line = fact.row if rows else fact.statement
            if fact.question in facts:
                if rows or rng.random() < 0.3:
                    continue
                updates[fact.question] = fact
                line = fact.update
            elif facts and not rows and rng.random() < 0.04:
                old = rng.choice(list(facts.values()))
                changed = _changed(rng, old)
                if changed is None:
                    continue
                fact = changed
                updates[fact.question] = fact
                line = fact.update
            else:
                facts[fact.question] = fact
        else:
            line = pick(words.SENTENCES, rng)
        lines.append(line)
        used += tokens(line) + (joint == "\n")
    return list(facts.values()), list(updates.values()), joint.join(lines), questions


def _changed(rng: Random, old: Fact) -> Fact | None:
    """The same fact with a new value: codes only, since those can be anything."""
    if not old.value.isdigit() or len(old.value) != 4:
        return None
    new = _code(rng)
    return Fact(
        old.statement.replace(old.value, new),
        old.statement.replace(f"is {old.value}", f"is now {new}"),
        old.row.replace(old.value, new),
        old.question,
        new,
    )


def _ask(rng: Random, fact: Fact) -> Exchange:
    sentence = fact.statement
    style = rng.random()
    if style < 0.25:
        question = f"{fact.question} {pick(_BRIEFLY, rng)}"
        content = capital(fact.value)
    else:
        question, content = fact.question, sentence
    return Exchange(question, content, f"The text says: {sentence}", containing(fact.value))


_BRIEFLY = (
    "Answer briefly.",
    "Only the answer, please.",
    "Give only the answer.",
    "Answer in a word or two.",
)


def _code(rng: Random) -> str:
    return str(rng.randrange(1000, 10000))


def _new_fact(rng: Random) -> Fact:
    return rng.choice(_FACTS)(rng)


def _box(rng: Random) -> Fact:
    what, value = expand("{colour} {container}", rng), _code(rng)
    return Fact(
        f"The code for the {what} is {value}.",
        f"The code for the {what} is now {value}.",
        f"{what}: {value}",
        f"What is the code for the {what}?",
        value,
    )


def _person_code(rng: Random) -> Fact:
    name, value = expand("{name}", rng), _code(rng)
    return Fact(
        f"The number of {name} is {value}.",
        f"The number of {name} is now {value}.",
        f"{name}: {value}",
        f"What is the number of {name}?",
        value,
    )


def _room_code(rng: Random) -> Fact:
    what, value = expand("{room} in {town}", rng), _code(rng)
    return Fact(
        f"The key number of the {what} is {value}.",
        f"The key number of the {what} is now {value}.",
        f"{what}: {value}",
        f"What is the key number of the {what}?",
        value,
    )


def _price(rng: Random) -> Fact:
    what, value = expand("{adj} {thing}", rng), str(rng.randrange(10, 1000))
    return Fact(
        f"The price of the {what} is {value} coins.",
        f"The price of the {what} is now {value} coins.",
        f"{what}: {value} coins",
        f"What is the price of the {what}?",
        value,
    )


def _keeps(rng: Random) -> Fact:
    name, what, value = expand("{name}", rng), expand("{adj} {thing}", rng), expand("{room}", rng)
    return Fact(
        f"{name} keeps the {what} in the {value}.",
        f"{name} now keeps the {what} in the {value}.",
        f"{name}, {what}: {value}",
        f"Where does {name} keep the {what}?",
        value,
    )


def _lives(rng: Random) -> Fact:
    name, value = expand("{name} the {job}", rng), expand("{town}", rng)
    return Fact(
        f"{name} lives in {value}.",
        f"{name} now lives in {value}.",
        f"{name}: {value}",
        f"Where does {name} live?",
        value,
    )


def _likes(rng: Random) -> Fact:
    name, value = expand("{name} from {town}", rng), expand("{food}", rng)
    return Fact(
        f"{name} likes {value} best.",
        f"{name} now likes {value} best.",
        f"{name}: {value}",
        f"What does {name} like best?",
        value,
    )


def _password(rng: Random) -> Fact:
    what, value = expand("{trait} {animal}", rng), expand("{fruit}{thing}", rng)
    return Fact(
        f"The password of the {what} is {value}.",
        f"The password of the {what} is now {value}.",
        f"{what}: {value}",
        f"What is the password of the {what}?",
        value,
    )


# Codes appear more often than the rest: they cannot be guessed.
_FACTS: list[Callable[[Random], Fact]] = [
    _box, _box, _box, _person_code, _room_code, _room_code, _price, _keeps, _lives, _likes, _password,
]  # fmt: skip
