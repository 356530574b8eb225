"""Numbers that a JSON schema bounds or names.

The grammar's compiler counts in 64 bits and in doubles, and would write the largest number that it knows where a
schema asks for a larger one.  Whole numbers up to 2⁵³ are exact for it and for everybody who reads JSON.  Within that
a schema means what it says; a whole number without a bound up to there has that bound; everything else is refused.
"""

from collections.abc import Mapping
from typing import Any, Final

from penstock.engine.constraint import GrammarError

EXACT: Final = 1 << 53
ANY_DOUBLE: Final = 1.7e308  # a bound that no number reaches
LOWER: Final = ("minimum", "exclusiveMinimum")
UPPER: Final = ("maximum", "exclusiveMaximum")

# Where schemas are within a schema: by name, alone, in lists.
NAMED: Final = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
ALONE: Final = (
    "items",
    "additionalProperties",
    "additionalItems",
    "not",
    "if",
    "then",
    "else",
    "contains",
    "propertyNames",
)
SEVERAL: Final = ("anyOf", "oneOf", "allOf", "prefixItems", "items")


def with_exact_numbers(schema: Any) -> Any:
    """A schema that means the same as far as its numbers can be kept; GrammarError that names one which cannot.

    >>> with_exact_numbers({"type": "integer", "minimum": 1, "maximum": 1e300})
    {'type': 'integer', 'minimum': 1, 'maximum': 9007199254740992}
    >>> with_exact_numbers({"type": "integer", "minimum": 1e300})
    Traceback (most recent call last):
    penstock.engine.constraint.GrammarError: minimum is 1e+300, beyond the numbers that can be kept: ±9007199254740992
    """
    if not isinstance(schema, Mapping):
        return schema
    whole = schema.get("type") == "integer"
    result: dict[str, Any] = {}
    for key, value in schema.items():
        if key in LOWER or key in UPPER:
            bound = _bound(key, value, whole)
            if bound is not None:
                result[key] = bound
        elif key in NAMED and isinstance(value, Mapping):
            result[key] = {name: with_exact_numbers(part) for name, part in value.items()}
        elif key in SEVERAL and isinstance(value, list):
            result[key] = [with_exact_numbers(part) for part in value]
        elif key in ALONE:
            result[key] = with_exact_numbers(value)
        else:
            if key in ("const", "enum"):
                _check_named(key, value)
            result[key] = value
    return result


def _bound(key: str, value: Any, whole: bool) -> Any:
    """The bound to keep; None if it says nothing."""
    if isinstance(value, bool) or not isinstance(value, int | float) or -EXACT <= value <= EXACT:
        return value
    says_little = value > 0 if key in UPPER else value < 0
    if says_little and whole:
        return EXACT if value > 0 else -EXACT
    if says_little and abs(value) >= ANY_DOUBLE:
        return None
    raise _beyond(key, value)


def _check_named(key: str, value: Any) -> None:
    if isinstance(value, list | dict):
        for part in value.values() if isinstance(value, dict) else value:
            _check_named(key, part)
    elif not isinstance(value, bool) and isinstance(value, int | float) and not -EXACT <= value <= EXACT:
        raise _beyond(key, value)


def _beyond(key: str, value: float) -> GrammarError:
    shown = repr(value) if len(repr(value)) < 40 else f"{repr(value)[:20]}…"
    return GrammarError(f"{key} is {shown}, beyond the numbers that can be kept: ±{EXACT}")
