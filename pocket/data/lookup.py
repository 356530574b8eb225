"""Finding a fact in a long text: registries full of codes, or a few facts among sentences that do not matter."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from pocket.data import words
from pocket.data.core import Dialogue, Exchange, Request, containing, dialogue, exactly
from pocket.data.grammar import capital, expand, pick

UNKNOWN = "I don't know."
_QUESTION = 23  # tokens of a question and its answer, about
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


@dataclass(frozen=True, slots=True)
class Text:
    """What is told before the questions: the facts as they stand in the end, those that changed on the way."""

    facts: dict[str, Fact]  # by question
    changed: list[str]
    words: str
    makers: list["Maker"]  # of the kinds of facts that occur


def build(rng: Random, request: Request) -> Dialogue:
    """A text and questions about it; a held-out one has a single question, which the text answers."""
    length = request.length or some_length(rng)
    # Up to half of a training text are questions: each teaches as much as the whole text without it.
    asking = _QUESTION if request.held_out else max(_QUESTION, int(length * rng.uniform(0.15, 0.5)))
    text = _text(rng, length - 8, asking)
    order = rng.sample(list(text.facts), len(text.facts))
    if text.changed and rng.random() < 0.5:
        order.append(rng.choice(text.changed))  # asked first
    exchanges: list[Exchange] = []
    while order and asking > 0:
        draw = 1.0 if request.held_out else rng.random()
        if draw < 0.08:
            exchange = _unknown(rng, text)
        elif draw < 0.35 and len(order) > 2:
            several = [text.facts[order.pop()] for _ in range(rng.randrange(2, 1 + min(12, len(order))))]
            exchange = _ask_several(rng, several)
        else:
            exchange = _ask(rng, text.facts[order.pop()])
        exchanges.append(exchange)
        asking -= int(tokens(exchange.question + exchange.content)) + 3
    return _told(rng, request, text.words, exchanges)


def unstated(rng: Random, request: Request) -> Dialogue:
    """A question that the text does not answer."""
    text = _text(rng, (request.length or some_length(rng)) - 8, _QUESTION)
    return _told(rng, request, text.words, [_unknown(rng, text)])


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


def _text(rng: Random, length: int, asking: int) -> Text:
    """A registry, or facts among other sentences, some of them corrected later on.  With questions about it, which
    take `asking` tokens if there is enough to ask, it has about `length` tokens."""
    dense = rng.random() < 0.6
    density = rng.uniform(0.6, 1.0) if dense else rng.uniform(0.02, 0.25)
    makers = rng.sample(_FACTS, rng.randrange(1, 5))
    rows = dense and rng.random() < 0.4
    joint = "\n" if rows or rng.random() < 0.5 else " "
    facts: dict[str, Fact] = {}
    changed: list[str] = []
    lines: list[str] = []
    used = 0.0
    while used + min(asking, 18 * len(facts)) < length or not facts:
        fact, line = None, pick(words.SENTENCES, rng)
        if rng.random() < density or (not facts and used > length / 2):
            fact = rng.choice(makers)(rng)
            if facts and not rows and rng.random() < 0.04:
                fact = _changed(rng, rng.choice(list(facts.values()))) or fact
        if fact is not None and not (rows and fact.question in facts):
            line = fact.row if rows else fact.statement
            if fact.question in facts:
                changed.append(fact.question)
                line = fact.update
            facts[fact.question] = fact
        lines.append(line)
        used += tokens(line) + (joint == "\n")
    return Text(facts, changed, joint.join(lines), makers)


def _changed(rng: Random, old: Fact) -> Fact | None:
    """The same fact with a new value; only codes change, since those can be anything."""
    if not old.value.isdigit() or len(old.value) != 4:
        return None
    new = _code(rng)
    return Fact(
        old.statement.replace(old.value, new),
        old.update.replace(old.value, new),
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


def _ask_several(rng: Random, facts: list[Fact]) -> Exchange:
    """Many at once, in few words: what is wanted of each, and a line for each."""
    wanted = "\n".join(fact.row.rpartition(":")[0] for fact in facts)
    lines = "\n".join(fact.row for fact in facts)
    question = f"{pick(_EACH, rng)}\n{wanted}"
    return Exchange(question, lines, "I look for each of them in the text.", exactly(lines))


_EACH = (
    "Look these up:",
    "What does the text say about these?",
    "Find [each|all] of these[ in the text|]:",
    "[Fill in|Complete] this list[, please|]:",
)


def _unknown(rng: Random, text: Text) -> Exchange:
    makers = text.makers if rng.random() < 0.7 else _FACTS
    missing = rng.choice(makers)(rng)
    while missing.question in text.facts:
        missing = rng.choice(_FACTS)(rng)
    return Exchange(missing.question, UNKNOWN, "The text does not say it.", containing("don't know"))


_BRIEFLY = (
    "Answer briefly.",
    "Only the answer, please.",
    "Give only the answer.",
    "Answer in a word or two.",
)


def _code(rng: Random) -> str:
    return str(rng.randrange(1000, 10000))


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


Maker = Callable[[Random], Fact]

_FACTS: list[Maker] = [
    _box, _box, _person_code, _room_code, _price, _keeps, _lives, _likes, _password,
]  # fmt: skip
