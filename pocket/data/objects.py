"""JSON from sentences: the answer is one JSON object or list and nothing else."""

import json
from random import Random
from typing import Any

from pocket.data.core import Answer, Check, Dialogue, Exchange, Request, dialogue
from pocket.data.grammar import expand, listed, pick
from pocket.data.words import SINGLE as _WORDS

_TYPES: dict[type, str] = {str: "string", int: "integer", bool: "boolean", list: "array", dict: "object"}


def build(rng: Random, request: Request) -> Dialogue:
    if rng.random() < 0.3:
        sentence, value = _record(rng)
        question = pick(
            ("{sentence}", "Extract the data: {sentence}", "{sentence} Give me the data."),
            rng,
            {"sentence": sentence},
        )
        return dialogue([_exchange(question, value)], request, response_schema=schema_of(value))
    count = 1 if request.held_out else rng.choice((1, 1, 2))
    return dialogue([exchange(rng) for _ in range(count)], request)


def exchange(rng: Random) -> Exchange:
    draw = rng.random()
    if draw < 0.62:
        sentence, value = _record(rng)
        return _exchange(_asked(rng, sentence, list(value)), value)
    if draw < 0.8:
        records = [_record(rng, kind=0) for _ in range(rng.randrange(2, 4))]
        keys = list(records[0][1])
        question = pick(
            (
                "Answer with a JSON list of objects with keys {keys}: {text}",
                "Make a JSON list, one object with keys {keys} per person: {text}",
            ),
            rng,
            {"keys": listed(keys), "text": " ".join(sentence for sentence, _ in records)},
        )
        return _exchange(question, [value for _, value in records])
    if draw < 0.92:
        items = rng.sample(_WORDS, rng.randrange(2, 7))
        question = pick(
            ("Write [this|these] as a JSON list: {items}", "Turn into a JSON list [of strings|]: {items}"),
            rng,
            {"items": ", ".join(items)},
        )
        return _exchange(question, items)
    key, amount = expand("{thing}", rng), rng.randrange(100)
    question = pick(
        (
            "Give me JSON with the key {key} and the value {value}.",
            "Write a JSON object where {key} is {value}.",
        ),
        rng,
        {"key": key, "value": str(amount)},
    )
    return _exchange(question, {key: amount})


def schema_of(value: Any) -> dict[str, Any]:
    """The JSON schema that this value is an example of."""
    if isinstance(value, dict):
        properties = {key: schema_of(part) for key, part in value.items()}
        return {"type": "object", "properties": properties, "required": list(value)}
    if isinstance(value, list):
        return {"type": "array", "items": schema_of(value[0])}
    return {"type": _TYPES[type(value)]}


def same_json(expected: Any) -> Check:
    def check(answer: Answer) -> bool:
        try:
            return answer.finished and bool(json.loads(answer.content) == expected)
        except ValueError:
            return False

    return check


def _exchange(question: str, value: Any) -> Exchange:
    if isinstance(value, dict):
        parts = [f"{key} is {json.dumps(part, ensure_ascii=False)}" for key, part in value.items()]
        reasoning = f"{'; '.join(parts)}."
    else:
        reasoning = f"A list of {len(value)}."
    return Exchange(question, json.dumps(value, ensure_ascii=False), reasoning, same_json(value))


def _asked(rng: Random, sentence: str, keys: list[str]) -> str:
    return pick(
        (
            "Answer in JSON with keys {keys}: {sentence}",
            "[Write|Give|Return] JSON with the keys {keys}. {sentence}",
            "{sentence} [Answer|Write this] as JSON with keys {keys}.",
            "Turn this into a JSON object ({listed}): {sentence}",
            "Extract {keys} as JSON: {sentence}",
        ),
        rng,
        {"keys": listed(keys), "listed": ", ".join(keys), "sentence": sentence},
    )


def _record(rng: Random, kind: int | None = None) -> tuple[str, dict[str, Any]]:
    """A sentence and the object that says the same."""
    slots = (
        "name",
        "town",
        "job",
        "animal",
        "colour",
        "thing",
        "food",
        "weather",
        "day",
        "month",
        "adj",
        "place",
    )
    v = {slot: expand(f"{{{slot}}}", rng) for slot in slots}
    age, count, price = rng.randrange(3, 99), rng.randrange(2, 60), rng.randrange(1, 500)
    yes = rng.random() < 0.5
    kind = rng.randrange(10) if kind is None else kind
    if kind == 0:
        sentence = pick(("{name} is {age} years old.", "{name} is {age}."), rng, v | {"age": str(age)})
        return sentence, {"name": v["name"], "age": age}
    if kind == 1:
        return (
            f"{v['name']} is {age} years old and lives in {v['town']}.",
            {"name": v["name"], "age": age, "city": v["town"]},
        )
    if kind == 2:
        return (
            expand("{name} from {town} works as a {job}.", rng, v),
            {"name": v["name"], "city": v["town"], "job": v["job"]},
        )
    if kind == 3:
        return f"The {v['colour']} {v['thing']} costs {price} coins.", {
            "item": v["thing"],
            "colour": v["colour"],
            "price": price,
        }
    if kind == 4:
        return (
            f"On {v['day']} it is {v['weather']} in {v['town']} at {count} degrees.",
            {"day": v["day"], "city": v["town"], "weather": v["weather"], "temperature": count},
        )
    if kind == 5:
        things = rng.sample(_WORDS, rng.randrange(2, 5))
        return f"{v['name']} buys {listed(things)}.", {"name": v["name"], "items": things}
    if kind == 6:
        return (
            expand("{name} has a {animal} that is {n} years old.", rng, v | {"n": str(count)}),
            {"owner": v["name"], "pet": {"kind": v["animal"], "age": count}},
        )
    if kind == 7:
        state = "open" if yes else "closed"
        return f"The {v['place']} is {state} on {v['day']}.", {
            "place": v["place"],
            "day": v["day"],
            "open": yes,
        }
    if kind == 8:
        return f"{v['name']} orders {count} {v['food']} for {price} coins.", {
            "name": v["name"],
            "order": {"item": v["food"], "count": count, "price": price},
        }
    return f"{v['name']} was born in {v['month']} in {v['town']}.", {
        "name": v["name"],
        "month": v["month"],
        "city": v["town"],
    }
