"""JSON of any size, read piece by piece.

Parsing thirty megabytes in one go would hold the interpreter, and with it every stream, for a fifth of a second.  So
whatever is done to a large body is done to a few hundred kilobytes of it at a time, and other threads run in between.
"""

import json
import json.decoder
import json.scanner
import re
import secrets
from collections.abc import Iterator
from typing import Any, Final

from penstock.server.http.errors import ApiError

PIECE: Final = 1 << 18  # bytes; a millisecond or two
LARGE: Final = 1 << 20  # bytes of a body that is not parsed in one go
MANY: Final = 50_000  # values that are too many for that: they take ten milliseconds
MAX_CONTAINERS: Final = (
    1 << 14
)  # objects and lists of a body: checking one takes 3 µs in one go, and a kilobyte
PAIR: Final = 12  # bytes of the longest escape, a surrogate pair

# Whole escapes, and what is between them; the first half of a surrogate pair stays with the second.
_WHOLE: Final = re.compile(
    rb"""(?: [^\\]++ | \\[^u] | \\u(?![dD][89abAB]).{4}
         | \\u[dD][89abAB].. (?: \\u[dD][c-fC-F].. | (?= [^\\] | \\[^u] | \\u(?![dD][c-fC-F]).{4} ) ) )*+""",
    re.DOTALL | re.VERBOSE,
)


def pieces(body: bytes, size: int = PIECE) -> Iterator[bytes]:
    """The body, cut neither within a character nor within an escape.

    >>> b"|".join(pieces(rb"a line\\nand", 7)), b"|".join(pieces("é é é".encode(), 4)).decode()
    (b'a line|\\\\nand', 'é |é |é')
    """
    begin = 0
    while begin < len(body):
        end = min(begin + size, len(body))
        if end < len(body):
            if b"\\" in body[max(begin, end - PAIR) : end]:
                whole = _WHOLE.match(body, begin, end)
                end = whole.end() if whole is not None and whole.end() > begin else end
            for _ in range(3):
                end -= end - 1 > begin and body[end] & 0xC0 == 0x80
        yield body[begin:end]
        begin = end


def check_structure(body: bytes, most: int, most_containers: int = MAX_CONTAINERS) -> int:
    """How many values there are in a body, or nearly.  Refuses one of too many before they are made: an empty list
    has two bytes in JSON and sixty in memory.

    >>> check_structure(b'{"a": "[[[", "b": [1, 2]}', 4)
    4
    >>> check_structure(b"[1, 2, 3, 4, 5]", 4)
    Traceback (most recent call last):
    penstock.server.http.errors.ApiError: the request has more than the 4 JSON values that are allowed
    """
    quotes = containers = values = 0
    for piece in pieces(body):
        bare = _without_escapes(piece)
        inside = quotes % 2
        quotes += bare.count(b'"')
        if quotes <= 4 * most:  # of a name and its value
            outside = b"".join(bare.split(b'"')[inside::2])
            opened = outside.count(b"[") + outside.count(b"{")
            containers += opened
            values += opened + outside.count(b",")
        if containers > most_containers:
            text = (
                f"the request has more than the {most_containers:,} JSON objects and lists that are allowed"
            )
            raise ApiError(400, text, code="too_many_values")
        if quotes > 4 * most or values > most:
            text = f"the request has more than the {most:,} JSON values that are allowed"
            raise ApiError(400, text, code="too_many_values")
    return values


def parse(body: bytes, values: int) -> Any:
    """What the body means, if it has about so many values; ValueError or RecursionError if it means nothing."""
    if len(body) <= LARGE and values <= MANY:
        return json.loads(body)
    if json.detect_encoding(body) not in ("utf-8", "utf-8-sig"):
        raise ValueError("the text is not UTF-8")
    texts = _LongTexts()
    text = texts.taken_from(body).decode("utf-8-sig")
    decoder = json.JSONDecoder() if values <= MANY else _PythonDecoder()
    return texts.put_into(decoder.decode(text))


def _without_escapes(piece: bytes) -> bytes:
    """As far as they matter to what is inside a text and what is not."""
    return piece.replace(b"\\\\", b"").replace(b'\\"', b"")


class _PythonDecoder(json.JSONDecoder):
    """The library's own decoder in Python: slower than the one in C, and never in anybody's way."""

    def __init__(self) -> None:
        super().__init__()
        self.scan_once = json.scanner.py_make_scanner(self)  # type: ignore[attr-defined]


class _LongTexts:
    """Pieces of a body that are all inside a text.  They are parsed by themselves; a mark that nobody can guess
    stands for each meanwhile."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._mark = secrets.token_hex(8)
        self._marked = re.compile(f"\0{self._mark}([0-9]+);")

    def taken_from(self, body: bytes) -> bytes:
        parts, inside = [], False
        for piece in pieces(body):
            quotes = _without_escapes(piece).count(b'"')
            if inside and not quotes:
                parts.append(f"\\u0000{self._mark}{len(self._texts)};".encode())
                self._texts.append(json.loads(b'"' + piece + b'"'))
            else:
                parts.append(piece)
            inside ^= quotes % 2 == 1
        return b"".join(parts)

    def put_into(self, value: Any) -> Any:
        if not self._texts:
            return value
        match value:
            case str() if self._mark in value:
                return self._marked.sub(lambda found: self._texts[int(found[1])], value)
            case list():
                return [self.put_into(each) for each in value]
            case dict():
                return {self.put_into(name): self.put_into(each) for name, each in value.items()}
        return value
