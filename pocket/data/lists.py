"""Lists of words or numbers: repeat, sort, count, reverse, pick."""

from random import Random

from pocket.data import words
from pocket.data.core import Dialogue, Exchange, Request, dialogue, exactly, number
from pocket.data.grammar import pick

_ORDINALS = (
    "first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth",
    "eleventh", "twelfth",
)  # fmt: skip


def copy(rng: Random, request: Request) -> Dialogue:
    return dialogue([copying(rng) for _ in range(_turns(rng, request))], request)


def sort(rng: Random, request: Request) -> Dialogue:
    return dialogue([sorting(rng) for _ in range(_turns(rng, request))], request)


def count(rng: Random, request: Request) -> Dialogue:
    return dialogue([counting(rng) for _ in range(_turns(rng, request))], request)


def reverse(rng: Random, request: Request) -> Dialogue:
    makers = [rng.choice((reversing, choosing)) for _ in range(_turns(rng, request))]
    return dialogue([make(rng) for make in makers], request)


def copying(rng: Random) -> Exchange:
    separator = rng.choice((", ", ", ", " ", "; ", "\n"))
    items = _nonsense(rng) if rng.random() < 0.25 else _items(rng, 12)
    text = separator.join(items) if rng.random() < 0.75 else pick(words.SENTENCES, rng)
    question = pick(
        (
            "Repeat [exactly|after me|this]: {text}",
            "Copy [this|exactly|the following][ text|]: {text}",
            "[Please say|Say] exactly this: {text}",
            "[Write|Say] the same [text |words |]again: {text}",
            "Echo: {text}",
        ),
        rng,
        {"text": text},
    )
    return Exchange(question, text, "I repeat the text as it is.", exactly(text))


def sorting(rng: Random) -> Exchange:
    if rng.random() < 0.5:
        items = list(dict.fromkeys(_words(rng, rng.randrange(3, 11))))
        result = sorted(items)
        asks: tuple[str, ...] = (
            "Sort [alphabetically|these words|from a to z|by alphabet]: {items}",
            "Put these words in alphabetical order: {items}",
            "Sort this list [of words |]alphabetically: {items}",
        )
        # The letters that decide come first, so that the order can be read off them.
        reasoning = "; ".join(f"{item[0]} {item[1:2]}: {item}" for item in result)
    else:
        digits = rng.choice((1, 2, 2, 3))
        values = [rng.randrange(10**digits) for _ in range(rng.randrange(3, 9))]
        down = rng.random() < 0.3
        items = [str(value) for value in values]
        result = [str(value) for value in sorted(values, reverse=down)]
        asks = (
            (
                "Sort from [large to small|high to low]: {items}",
                "Sort [these numbers |]in descending order: {items}",
                "Put [these numbers |]in order, [largest|biggest] first: {items}",
            )
            if down
            else (
                "Sort [these numbers|this list]: {items}",
                "Sort [numerically|from small to large|in ascending order|from low to high]: {items}",
                "Put these numbers in order: {items}",
                "Put [these numbers |]in order, smallest first: {items}",
            )
        )
        first = "Largest" if down else "Smallest"
        reasoning = f"{first} {result[0]}, then {', then '.join(result[1:])}."
    text = ", ".join(result)
    return Exchange(pick(asks, rng, {"items": ", ".join(items)}), text, reasoning, exactly(text))


def counting(rng: Random) -> Exchange:
    style = rng.random()
    if style < 0.35:
        items = _items(rng, 12)
        asks: tuple[str, ...] = (
            "How many [items|things|entries] are in this list: {items}?",
            "How many items are there? {items}",
            "Count the [items|elements|entries]: {items}",
            "Count [this list|these]: {items}",
        )
        reasoning = ", ".join(f"{index} {item}" for index, item in enumerate(items, 1))
        return _count(rng, asks, {"items": ", ".join(items)}, reasoning, len(items))
    if style < 0.55:
        word = rng.choice(words.SHORT)
        asks = (
            'How many letters are in [the word |]"{word}"?',
            "How many letters does [the word |]{word} have?",
            "Count the letters [in|of] {word}.",
        )
        reasoning = ", ".join(f"{letter} {index}" for index, letter in enumerate(word, 1))
        return _count(rng, asks, {"word": word}, reasoning, len(word))
    if style < 0.75:
        word = rng.choice(words.SHORT)
        letter = rng.choice(word) if rng.random() < 0.85 else rng.choice("abcdefghijklmnopqrstuvwxyz")
        asks = (
            'How many times does [the letter |]{letter} [occur|appear] in "{word}"?',
            "How many {letter}'s are in {word}?",
            "Count the letter {letter} in {word}.",
        )
        values = {"word": word, "letter": letter}
        return _count(rng, asks, values, _tally(list(word), letter), word.count(letter))
    pool = _words(rng, rng.randrange(2, 5))
    items = [rng.choice(pool) for _ in range(rng.randrange(4, 13))]
    item = rng.choice(pool)
    asks = (
        "How many times does {item} [occur|appear] in: {items}?",
        "How often is {item} in this list: {items}?",
        "Count {item} in this list: {items}",
    )
    values = {"item": item, "items": ", ".join(items)}
    return _count(rng, asks, values, _tally(items, item), items.count(item))


def reversing(rng: Random) -> Exchange:
    if rng.random() < 0.2:
        word = rng.choice(words.SHORT)
        question = pick(
            ("Spell {word} backwards.", 'Reverse the [word|letters of] "{word}".'), rng, {"word": word}
        )
        result = word[::-1]
        reasoning = f"{' '.join(word)}. Backwards: {' '.join(result)}."
        return Exchange(question, result, reasoning, exactly(result))
    items = _items(rng, 10)
    backwards = items[::-1]
    question = pick(
        (
            "Reverse [this list|these|the list]: {items}",
            "Write [this|the] list backwards: {items}",
            "[Put|Write] these in reverse order: {items}",
            "Say this list from last to first: {items}",
        ),
        rng,
        {"items": ", ".join(items)},
    )
    result = ", ".join(backwards)
    numbered = [f"{index} {item}" for index, item in enumerate(items, 1)]
    reasoning = f"{', '.join(numbered)}. Start with {len(items)}."
    return Exchange(question, result, reasoning, exactly(result))


def choosing(rng: Random) -> Exchange:
    items = _items(rng, 10)
    index = rng.randrange(len(items))
    place = "last" if index == len(items) - 1 and rng.random() < 0.7 else _ORDINALS[index]
    question = pick(
        (
            "What is the {place} [item|word|entry] [in|of] this list: {items}?",
            "Which [item|one] is {place}: {items}?",
            "Give me the {place} item: {items}",
            "[Write|Say] only the {place} of these: {items}",
        ),
        rng,
        {"place": place, "items": ", ".join(items)},
    )
    reasoning = ", ".join(f"{position} {item}" for position, item in enumerate(items[: index + 1], 1))
    return Exchange(question, items[index], reasoning, exactly(items[index]))


def _turns(rng: Random, request: Request) -> int:
    return 1 if request.held_out else rng.choice((1, 1, 2, 3))


def _items(rng: Random, most: int) -> list[str]:
    size = rng.randrange(3, most + 1)
    if rng.random() < 0.65:
        return _words(rng, size)
    digits = rng.choice((1, 2, 2, 3, 4))
    return [str(rng.randrange(10**digits)) for _ in range(size)]


def _words(rng: Random, size: int) -> list[str]:
    pool = words.SINGLE if rng.random() < 0.8 else words.LISTS["name"]
    return rng.sample(pool, size)


def _nonsense(rng: Random) -> list[str]:
    return [
        "".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randrange(2, 7)))
        for _ in range(rng.randrange(3, 9))
    ]


def _count(
    rng: Random, asks: tuple[str, ...], values: dict[str, str], reasoning: str, result: int
) -> Exchange:
    return Exchange(pick(asks, rng, values), str(result), reasoning, number(result))


def _tally(items: list[str], wanted: str) -> str:
    steps, found = [], 0
    for item in items:
        found += item == wanted
        steps.append(f"{item} {found}" if item == wanted else item)
    return f"{', '.join(steps)}. Found {found}."
