"""How a value from a file is shown in an error message, whatever its size or depth."""

import reprlib

_REPR = reprlib.Repr()
_REPR.maxstring = _REPR.maxother = 300  # room for a regex


def shown(value: object) -> str:
    """`repr`, cut short: a damaged file may hold anything where a small value should be."""
    return _REPR.repr(value)
