"""A small template language: `[a|b]` is a choice, `{name}` a slot.

A slot is taken from the caller's values, else drawn from the word list of that name; `{Name}` is the same
word with a capital.  "a" becomes "an" where the next word asks for it.

>>> expand("[Hi|Hello], {name}!", Random(1), {"name": "Mia"})
'Hi, Mia!'
"""

import re
from collections.abc import Mapping, Sequence
from functools import cache
from random import Random

from pocket.data import words

_ARTICLE = re.compile(r"\b([Aa]) (?=(?!uni|use|usu|one\b|eu|ukul)[aeiouAEIOU]|hour|honest)")
_TOKEN = re.compile(r"\[|\]|\||\{(\w+)\}")

# A template is a list of parts: text, a slot (1-tuple) or a choice between templates.
_Part = str | tuple[str] | list["_Template"]
_Template = list[_Part]


def expand(template: str, rng: Random, values: Mapping[str, str] | None = None) -> str:
    out: list[str] = []
    _write(_parse(template), rng, values or {}, out)
    return with_articles("".join(out))


def pick(templates: Sequence[str], rng: Random, values: Mapping[str, str] | None = None) -> str:
    return expand(templates[int(rng.random() * len(templates))], rng, values)


def with_articles(text: str) -> str:
    return _ARTICLE.sub(r"\1n ", text)


def capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def listed(items: Sequence[str], last: str = "and") -> str:
    """`a, b and c`."""
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} {last} {items[-1]}"


def _write(template: _Template, rng: Random, values: Mapping[str, str], out: list[str]) -> None:
    for part in template:
        if isinstance(part, str):
            out.append(part)
        elif isinstance(part, tuple):
            out.append(_slot(part[0], rng, values))
        else:
            _write(part[int(rng.random() * len(part))], rng, values, out)


def _slot(name: str, rng: Random, values: Mapping[str, str]) -> str:
    found = values.get(name)
    if found is not None:
        return found
    if name[0].isupper():
        return capital(_slot(name[0].lower() + name[1:], rng, values))
    choices = words.LISTS[name]
    return choices[int(rng.random() * len(choices))]


@cache
def _parse(template: str) -> _Template:
    root: _Template = []
    open_templates: list[_Template] = [root]
    open_choices: list[list[_Template]] = []
    position = 0
    for match in _TOKEN.finditer(template):
        if match.start() > position:
            open_templates[-1].append(template[position : match.start()])
        position = match.end()
        symbol = match[0]
        if symbol == "[":
            choice: list[_Template] = [[]]
            open_templates[-1].append(choice)
            open_choices.append(choice)
            open_templates.append(choice[0])
        elif symbol == "|" and open_choices:
            open_choices[-1].append([])
            open_templates[-1] = open_choices[-1][-1]
        elif symbol == "]":
            open_choices.pop()
            open_templates.pop()
        else:
            open_templates[-1].append((match[1],) if match[1] else symbol)
    if position < len(template):
        open_templates[-1].append(template[position:])
    return root
