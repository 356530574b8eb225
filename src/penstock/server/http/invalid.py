"""What is wrong with a request's fields, by the names that its client wrote.

Errors of validation name the kinds that were tried on the way as well; a client has written none of those.  The body
itself tells which names are its own.
"""

import json
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

Place = tuple[str | int, ...]

CODES: Final = {
    "missing": "missing_required_parameter",
    "union_tag_not_found": "missing_required_parameter",
    "not_text": "unsupported_value",
    "unsupported_tool": "unsupported_value",
}


# Besides values of a wrong type: those of few words, and numbers out of bounds.
SHOWN: Final = ("literal_error", "greater_than", "greater_than_equal", "less_than", "less_than_equal")
LONGEST: Final = 40  # characters of a value that are shown


class Fault(NamedTuple):
    place: Place
    message: str
    code: str


def first_fault(errors: Sequence[Any], body: Any) -> Fault:
    """Of the first field that is wrong, what is said of its innermost part: of several kinds that a value may have,
    that is the one that it comes nearest to."""
    top = _top(errors[0])
    same = [(_place(error, body), error) for error in errors if _top(error) == top]
    place, error = max(same, key=lambda found: (len(found[0]), not found[1]["type"].endswith("_type")))
    return _fault(place, error)


def _top(error: Any) -> Any:
    return error["loc"][:2]


def _place(error: Any, body: Any) -> Place:
    """Also of a path or a query, which have names of their own."""
    where, *loc = error["loc"]
    return place_in(loc, body, error["type"]) if where == "body" else tuple(loc)


def place_in(loc: Sequence[str | int], body: Any, kind: str) -> Place:
    """
    >>> place_in(("stop", "list[constrained-str]", 1), {"stop": ["a", 5]}, "string_type")
    ('stop', 1)
    >>> place_in(("tools", 0, "function", "name"), {"tools": [{"type": "function"}]}, "missing")
    ('tools', 0, 'name')
    """
    found: list[str | int] = []
    for part in loc:
        here = isinstance(body, dict) and part in body
        if here or (isinstance(body, list) and isinstance(part, int) and part < len(body)):
            found.append(part)
            body = body[part]
    if kind == "missing" and loc and isinstance(body, dict) and loc[-1] not in body:
        found.append(loc[-1])
    return tuple(found)


def _fault(place: Place, error: Any) -> Fault:
    kind, about, message = error["type"], error.get("ctx", {}), error["msg"]
    if kind.startswith("union_tag"):
        place = (*place, about["discriminator"].strip("'"))
        known = "expected_tags" in about
        message = f"expected one of {about['expected_tags']}, found '{about['tag']}'" if known else "missing"
    elif kind == "missing":
        message = "missing"
    elif kind == "too_long" and about.get("field_type") == "List":
        place = (*place, about["max_length"])  # the first that is one too many
        message = f"at most {about['max_length']} are allowed, found {about['actual_length']}"
    elif kind in SHOWN or kind.endswith(("_type", "_parsing")):
        message += f", found {_shown(error['input'])}"
    return Fault(place, message, CODES.get(kind, "invalid_value"))


def _shown(value: Any) -> str:
    match value:
        case dict():
            return "an object"
        case list():
            return "a list"
        case str():
            return repr(value) if len(value) <= LONGEST else "a long string"
        case _:
            return json.dumps(value, default=lambda _: "something else")


def spelled(place: Place, dotted: bool = False) -> str:
    """A place in a body, as OpenAI writes it, or with dots alone as Anthropic does.

    >>> spelled(("messages", 2, "content", 0, "text")), spelled(("messages", 2, "role"), dotted=True)
    ('messages[2].content[0].text', 'messages.2.role')
    """
    if dotted:
        return ".".join(map(str, place))
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place).removeprefix(".")
