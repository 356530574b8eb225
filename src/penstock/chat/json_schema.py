"""What a JSON schema says at its surface: the parameters of a tool, and whether a value may be a string.

Schemas come from clients and may be anything.  What makes no sense says nothing: everything fits it.
"""

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, Final, NamedTuple

Schema = Mapping[str, Any]

MOST_BRANCHES: Final = 64
_DEEPEST: Final = 16
_ROOT: Final = "#/$defs/root"


class Parameters(NamedTuple):
    """A function's parameters.  `others`: what a parameter of any other name is, None if there is none."""

    named: dict[str, Any]
    required: frozenset[str]
    others: Any


class Forms(NamedTuple):
    """How a value may be written: as any text, as one of some texts, as JSON."""

    text: bool
    texts: tuple[str, ...]
    json: bool


def parameters(schema: Any) -> Parameters:
    """The parameters that a tool's schema describes.  Other names than those that it declares are not meant, unless
    it declares none; and if it says so ("properties": {}), there are none."""
    if schema is None:
        return Parameters({}, frozenset(), None)
    root = schema if isinstance(schema, Mapping) else {}
    (only, *more) = branches(root, root)
    if more:
        return Parameters({}, frozenset(), {})
    declared, required = only.get("properties"), only.get("required")
    needed = [name for name in required if isinstance(name, str)] if isinstance(required, list) else []
    named = dict(declared) if isinstance(declared, Mapping) else {}
    named |= {name: {} for name in needed if name not in named}
    others = only.get("additionalProperties", not isinstance(declared, Mapping))
    return Parameters(named, frozenset(needed), None if named or others is False else others)


def forms(schema: Any, root: Any) -> Forms:
    """How a value of this schema may be written."""
    text, json, texts = False, False, dict[str, None]()
    for branch in branches(schema, root):
        kind = branch.get("type")
        kinds = {kind} if isinstance(kind, str) else set(map(str, kind)) if isinstance(kind, list) else None
        values = [branch["const"]] if "const" in branch else branch.get("enum")
        if isinstance(values, list):
            texts |= dict.fromkeys(value for value in values if isinstance(value, str))
            json = json or any(not isinstance(value, str) for value in values)
        else:
            text = text or kinds is None or "string" in kinds
            json = json or kinds is None or kinds != {"string"}
    return Forms(text, tuple(texts), json)


def branches(schema: Any, root: Any) -> list[Schema]:
    """The alternatives that a schema is made of, references followed; one that everything fits, if they are many."""
    found = list(islice(_branches(schema, root, _DEEPEST), MOST_BRANCHES + 1))
    return found if len(found) <= MOST_BRANCHES else [{}]


def _branches(schema: Any, root: Any, left: int) -> Iterator[Schema]:
    if not isinstance(schema, Mapping) or left == 0:
        yield {}
        return
    for word in ("$ref", "allOf", "anyOf", "oneOf"):
        if word not in schema:
            continue
        rest, value = {key: said for key, said in schema.items() if key != word}, schema[word]
        if word == "$ref":
            targets = [_target(value, root)]
        elif not isinstance(value, list) or not value:
            targets = [{}]
        elif word == "allOf":
            targets = [
                {key: said for part in value if isinstance(part, Mapping) for key, said in part.items()}
            ]
        else:
            targets = value
        for target in targets:
            yield from _branches({**rest, **(target if isinstance(target, Mapping) else {})}, root, left - 1)
        return
    yield schema


def _target(reference: Any, root: Any) -> Any:
    """What a reference within the schema points to; nothing, if it points elsewhere."""
    if not isinstance(reference, str) or not reference.startswith("#"):
        return {}
    target = root
    for part in reference[1:].split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        target = target.get(name) if isinstance(target, Mapping) else None
    return target


def alone(schema: Any, root: Any) -> dict[str, Any]:
    """A part of the schema `root` as one of its own.  References point from the root, so it comes along."""
    part = dict(schema) if isinstance(schema, Mapping) else {}
    return {**_moved(part), "$defs": {"root": _moved(root)}} if _refers(part, _DEEPEST) else part


def _refers(schema: Any, left: int) -> bool:
    if isinstance(schema, Mapping):
        return "$ref" in schema or left == 0 or any(_refers(value, left - 1) for value in schema.values())
    return isinstance(schema, list) and (left == 0 or any(_refers(item, left - 1) for item in schema))


def _moved(schema: Any) -> Any:
    """With references that point from a root one level up; a name of its own would make them point from there."""
    if isinstance(schema, list):
        return [_moved(item) for item in schema]
    if not isinstance(schema, Mapping):
        return schema
    return {
        key: _ROOT + value[1:]
        if key == "$ref" and isinstance(value, str) and value.startswith("#")
        else _moved(value)
        for key, value in schema.items()
        if key != "$id"
    }
