"""Changes to a configuration that leave the rest of its text, and the comments in it, as they are."""

import re
from collections.abc import Mapping, Sequence


def with_fields(lines: Sequence[str], fields: Mapping[str, str]) -> list[str]:
    """Lines with these fields: each replaces the line that begins with its name, or comes after the others.

    >>> with_fields(["a = 1", "b = 2", ""], {"a": "a = 3", "c": "c = 4"})
    ['a = 3', 'b = 2', 'c = 4', '']
    """
    result = list(lines)
    for name, line in fields.items():
        begin = re.compile(rf"""["']?{re.escape(name)}["']?\s*[:=]""")
        places = [place for place, old in enumerate(result) if begin.match(old.strip())]
        if places:
            result[places[0]] = line
        else:
            result.insert(_end(result), line)
    return result


def _end(lines: Sequence[str]) -> int:
    """After the last line that says something."""
    return max((place + 1 for place, line in enumerate(lines) if line.strip()), default=0)


def indentation(line: str) -> int:
    return len(line) - len(line.lstrip(" "))
