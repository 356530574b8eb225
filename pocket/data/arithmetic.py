"""Sums, differences, products by one digit, comparisons and word problems.

With thinking, numbers are worked column by column in one fixed procedure; the digits written so far stand in
brackets, so that the result is read off and never reversed:

    478 + 256: ones 8 + 6 = 14, carry 1 (4); tens 7 + 5 + 1 = 13, carry 1 (34); hundreds 4 + 2 + 1 = 7 (734). 734
"""

from random import Random

from pocket.data.core import Dialogue, Exchange, Request, containing, dialogue, number
from pocket.data.grammar import expand, pick

_COLUMNS = ("ones", "tens", "hundreds", "thousands", "ten thousands", "hundred thousands")


def add(a: int, b: int) -> str:
    """The column-wise reasoning for a + b."""
    steps, carry, done = [], 0, ""
    for column in range(max(len(str(a)), len(str(b)))):
        x, y = _digit(a, column), _digit(b, column)
        total = x + y + carry
        terms = f"{x} + {y} + {carry}" if carry else f"{x} + {y}"
        carry, digit = divmod(total, 10)
        done = f"{digit}{done}"
        steps.append(f"{_COLUMNS[column]} {terms} = {total}{', carry 1' if carry else ''} ({done})")
    if carry:
        steps.append(f"write carry (1{done})")
    return f"{a} + {b}: {'; '.join(steps)}. {a + b}"


def subtract(a: int, b: int) -> str:
    """The column-wise reasoning for a - b."""
    if a < b:
        return f"{a} is less than {b}, so the result is negative. {subtract(b, a)}. {a - b}"
    steps, borrow, done = [], 0, ""
    for column in range(len(str(a))):
        x, y = _digit(a, column), _digit(b, column)
        lent = 10 if x - borrow < y else 0
        terms = f"{x} + 10 - {y}" if lent else f"{x} - {y}"
        digit = x + lent - borrow - y
        terms += " - 1" if borrow else ""
        borrow = 1 if lent else 0
        done = f"{digit}{done}"
        steps.append(f"{_COLUMNS[column]} {terms} = {digit}{', borrow 1' if borrow else ''} ({done})")
    return f"{a} - {b}: {'; '.join(steps)}. {a - b}"


def multiply(a: int, b: int) -> str:
    """The column-wise reasoning for a * b, where b has one digit."""
    steps, carry, done = [], 0, ""
    for column in range(len(str(a))):
        x = _digit(a, column)
        total = x * b + carry
        terms = f"{x} * {b} = {x * b}" + (f", {x * b} + {carry} = {total}" if carry else "")
        carry, digit = divmod(total, 10)
        done = f"{digit}{done}"
        steps.append(f"{_COLUMNS[column]} {terms}{f', carry {carry}' if carry else ''} ({done})")
    if carry:
        steps.append(f"write carry ({carry}{done})")
    return f"{a} * {b}: {'; '.join(steps)}. {a * b}"


def compare(a: int, b: int) -> str:
    """The reasoning for which of two numbers is larger."""
    if len(str(a)) != len(str(b)):
        return f"{a} has {len(str(a))} digits, {b} has {len(str(b))}. Larger: {max(a, b)}"
    for column in reversed(range(len(str(a)))):
        x, y = _digit(a, column), _digit(b, column)
        if x != y:
            return f"{_COLUMNS[column]} {x} and {y} differ. Larger: {max(a, b)}"
    return f"{a} and {b} are equal."


def exchange(rng: Random, request: Request) -> Exchange:
    kind = rng.random()
    if kind < 0.50:
        return _addition(rng, request)
    if kind < 0.68:
        return _subtraction(rng, request)
    if kind < 0.80:
        return _multiplication(rng, request)
    if kind < 0.88:
        return _comparison(rng)
    return _word_problem(rng, request)


def build(rng: Random, request: Request) -> Dialogue:
    # Several small sums in one conversation cost few tokens and cover the tables faster.
    count = 1 if request.held_out else rng.choice((1, 2, 3, 4))
    return dialogue([exchange(rng, request) for _ in range(count)], request)


def addition(a: int, b: int, rng: Random) -> Exchange:
    question = pick(_ADD_ASK, rng, {"a": str(a), "b": str(b)})
    return Exchange(question, _worded(f"{a} + {b}", a + b, rng), add(a, b), number(a + b))


_ADD_ASK = (
    "What is {a} + {b}?",
    "{a} + {b}",
    "{a}+{b}",
    "{a} + {b} = ?",
    "Add {a} and {b}.",
    "How much is {a} + {b}?",
    "[Please calculate|Calculate|Compute|Work out] {a} + {b}.",
    "What is {a} plus {b}?",
    "What is the sum of {a} and {b}?",
    "[Can you add|Please add] {a} and {b}[?|]",
    "What do you get if you add {a} and {b}?",
    "What's {a}+{b}?",
)
_SUBTRACT_ASK = (
    "What is {a} - {b}?",
    "{a} - {b}",
    "{a}-{b}",
    "{a} - {b} = ?",
    "Subtract {b} from {a}.",
    "How much is {a} - {b}?",
    "[Calculate|Compute|Work out] {a} - {b}.",
    "What is {a} minus {b}?",
    "Take {b} away from {a}.",
    "What is the difference between {a} and {b}?",
)
_MULTIPLY_ASK = (
    "What is {a} * {b}?",
    "{a} * {b}",
    "{a} x {b}",
    "{a}*{b}",
    "{a} × {b} = ?",
    "Multiply {a} by {b}.",
    "How much is {a} times {b}?",
    "[Calculate|Compute|Work out] {a} * {b}.",
    "What is {a} times {b}?",
    "What is the product of {a} and {b}?",
)


def _digit(value: int, column: int) -> int:
    return int(str(value)[-1 - column]) if column < len(str(value)) else 0


def _worded(left: str, result: int, rng: Random) -> str:
    return str(result) if rng.random() < 0.6 else f"{left} = {result}."


def _sized(rng: Random, request: Request, longest: int = 4) -> tuple[int, int]:
    """Two numbers: mostly two digits; more with thinking.  Of longer pairs a tenth is held out for problems."""
    draw = rng.random()
    if request.thinking:
        digits = 2 if draw < 0.45 else 1 if draw < 0.55 else 3 if draw < 0.8 else 4
    else:
        digits = 2 if draw < 0.75 else 1 if draw < 0.93 else 3
    digits = min(digits, longest)
    while True:
        a = rng.randrange(10 ** (digits - 1) if digits > 1 else 0, 10**digits)
        b = rng.randrange(10 ** (digits - 1) if digits > 1 else 0, 10**digits)
        if digits > 1 and rng.random() < 0.12:
            b = rng.randrange(10 ** (digits - 1))
        if rng.random() < 0.5:
            a, b = b, a
        if digits < 3 or ((a * 31 + b * 17) % 10 == 0) == request.held_out:
            return a, b


def _addition(rng: Random, request: Request) -> Exchange:
    return addition(*_sized(rng, request), rng)


def _subtraction(rng: Random, request: Request) -> Exchange:
    a, b = _sized(rng, request)
    question = pick(_SUBTRACT_ASK, rng, {"a": str(a), "b": str(b)})
    if a < b and (rng.random() < 0.85 or "difference" in question):
        a, b = b, a
        question = pick(_SUBTRACT_ASK, rng, {"a": str(a), "b": str(b)})
    return Exchange(question, _worded(f"{a} - {b}", a - b, rng), subtract(a, b), number(a - b))


def _multiplication(rng: Random, request: Request) -> Exchange:
    if request.thinking:
        a = _sized(rng, request, longest=3)[0]
    else:
        a = rng.randrange(0, 13) if rng.random() < 0.8 else rng.randrange(10, 100)
    b = rng.randrange(0, 10)
    question = pick(_MULTIPLY_ASK, rng, {"a": str(a), "b": str(b)})
    return Exchange(question, _worded(f"{a} * {b}", a * b, rng), multiply(a, b), number(a * b))


def _comparison(rng: Random) -> Exchange:
    digits = rng.randrange(1, 5)
    a = rng.randrange(10**digits)
    b = rng.randrange(10**digits) if rng.random() < 0.7 else max(0, a + rng.randrange(-9, 10))
    b = b + 1 if a == b else b
    values = {"a": str(a), "b": str(b)}
    style = rng.random()
    if style < 0.4:
        question = expand("Which is [larger|bigger|greater][,|:] {a} or {b}?", rng, values)
        return Exchange(question, str(max(a, b)), compare(a, b), number(max(a, b)))
    if style < 0.7:
        question = expand("Which [number |]is [smaller|less][,|:] {a} or {b}?", rng, values)
        return Exchange(question, str(min(a, b)), compare(a, b), number(min(a, b)))
    question = expand("Is {a} [larger|bigger|greater|more] than {b}?", rng, values)
    word = "Yes" if a > b else "No"
    relation = "larger" if a > b else "smaller"
    return Exchange(question, f"{word}, {a} is {relation} than {b}.", compare(a, b), containing(word))


_ONE_STEP = (
    (
        "{name} has {a} {things}. {other} gives {name} {b} more. How many {things} does {name} have[ now|]?",
        "+",
    ),
    (
        "There are {a} {things} in the {container}. {name} puts in {b} more. How many {things} are there[ now|]?",
        "+",
    ),
    ("{name} finds {a} {things} and {other} finds {b}. How many {things} do they have together?", "+"),
    ("{name} has {a} {things} and gives {b} to {other}. How many {things} are left?", "-"),
    (
        "There are {a} {things} on the table. {name} takes {b} [away|of them]. How many {things} are left?",
        "-",
    ),
    ("{name} has {a} {things}. {other} has {b}. How many more {things} does {name} have than {other}?", "-"),
    ("{name} has {b} boxes with {a} {things} each. How many {things} does {name} have?", "*"),
    ("One {fruit} costs {a} coins. How many coins do {b} cost?", "*"),
)
_TWO_STEP = (
    (
        "{name} has {a} {things}. {name} finds {b} more and gives {c} to {other}. How many {things} are left?",
        "+-",
    ),
    (
        "There are {a} {things} in the {container}. {name} adds {b}, then {other} adds {c}. How many are there?",
        "++",
    ),
    ("{name} has {a} {things}, eats {b} and loses {c}. How many {things} are left?", "--"),
    (
        "{name} had {a} {things}, gave away {b} and then got {c}. How many {things} does {name} have[ now|]?",
        "-+",
    ),
)


def _word_problem(rng: Random, request: Request) -> Exchange:
    two_steps = rng.random() < 0.45
    template, operators = rng.choice(_TWO_STEP if two_steps else _ONE_STEP)
    limit = 100 if request.thinking else 20 if two_steps else 50
    a, b, c = rng.randrange(2, limit), rng.randrange(2, limit), rng.randrange(1, limit)
    if operators[0] == "-":
        a, b = max(a, b) + 1, min(a, b)
    if operators == "*":
        b = rng.randrange(2, 10)
        a = a if request.thinking else rng.randrange(2, 13)
    total, reasoning = _apply(a, operators[0], b)
    if two_steps:
        if operators[1] == "-":
            c = rng.randrange(1, max(2, total))
        total, second = _apply(total, operators[1], c)
        reasoning = f"{reasoning}. Then {second}"
    things, name, other, container, fruit = (
        expand(slot, rng) for slot in ("{things}", "{name}", "{name}", "{container}", "{fruit}")
    )
    other = "Sam" if name != "Sam" and other == name else "Mia" if other == name else other
    values = {"a": str(a), "b": str(b), "c": str(c), "things": things, "name": name, "other": other}
    question = expand(template, rng, values | {"container": container, "fruit": fruit})
    return Exchange(question, str(total), reasoning, number(total))


def _apply(a: int, operator: str, b: int) -> tuple[int, str]:
    if operator == "+":
        return a + b, add(a, b)
    if operator == "-":
        return a - b, subtract(a, b)
    return a * b, multiply(a, b)
