"""DSML's tags, in the spelling that DeepSeek-V4 was taught and in those that it slips into.

<｜DSML｜tool_calls>   as taught      <DSML｜tool_calls>   first bar lost      <｜DSML｜function_calls>   V3.2's name
<｜DSML｜invoke name="f"/>   opened and closed at once

A tag without the marker is text like any other: it may well be XML.
"""

import re
from typing import Final, NamedTuple

from penstock.chat.deepseek_v4.markers import DSML

LOST_BAR: Final = DSML[1:]
_BLOCKS: Final = ("tool_calls", "function_calls")

# Every opening begins with `<` and has no other, so at most one of them can begin at any place.
OPENINGS: Final = tuple(
    f"<{mark}{name}" for mark in (DSML, LOST_BAR) for name in (*(f"{block}>" for block in _BLOCKS), "invoke ")
)
CLOSING_MARK: Final = f"</{DSML}"
END_PARAMETER: Final = f"{CLOSING_MARK}parameter>"
CLOSINGS: Final = (CLOSING_MARK, f"</{LOST_BAR}")
MARKS: Final = (*CLOSINGS, f"<{DSML}", f"<{LOST_BAR}")  # what every tag begins with

_TAG = re.compile(rf"<(?P<close>/?)(?P<mark>{DSML}|{LOST_BAR})(?P<name>\w+)(?P<rest>[^>]*?)(?P<empty>/?)>")
_NAME = re.compile(r"""\bname\s*=\s*("[^"]*"|'[^']*'|“[^”]*”|[^\s"'“”>]+)""")
_STRING = re.compile(r"""\bstring\s*=\s*["'“]?(true|false)["'”]?""")
_EXACT = {
    "invoke": re.compile(r' name="[^"]+"'),
    "parameter": re.compile(r' name="[^"]*" string="(true|false)"'),
}


class Tag(NamedTuple):
    """A tag as read.  `exact`: spelled as taught.  `string` is None where the attribute is missing.  `empty`: it
    closes what it opens."""

    kind: str  # "invoke", "parameter", "block", or "" for anything else
    close: bool
    exact: bool
    name: str | None = None
    string: bool | None = None
    empty: bool = False


def read_tag(text: str) -> Tag:
    """`text` from its `<` to its `>`."""
    found = _TAG.fullmatch(text)
    if not found:
        return Tag("", text.startswith("</"), False)
    name, rest, close = found["name"], found["rest"], bool(found["close"])
    empty = bool(found["empty"])
    marked = found["mark"] == DSML and not empty
    if name in _BLOCKS:
        return Tag("block", close, exact=marked and name == "tool_calls" and not rest)
    if name not in ("invoke", "parameter"):
        return Tag("", close, False)
    if close:
        return Tag(name, True, exact=marked and not rest)
    attribute, kind = _NAME.search(rest), _STRING.search(rest)
    return Tag(
        name,
        False,
        exact=marked and bool(_EXACT[name].fullmatch(rest)),
        name=_unquoted(attribute[1]) if attribute else None,
        string=kind[1] == "true" if kind else None,
        empty=empty,
    )


def _unquoted(text: str) -> str:
    return text[1:-1] if text[0] in "\"'“" else text


def find_first(text: str, needles: tuple[str, ...], start: int = 0) -> tuple[int, str]:
    """Where the first of `needles` (each begins with its only `<`) stands, and which one.

    If none is there: where text begins that may still become one, and "".  All before that place is safe.
    """
    at = text.find("<", start)
    while at >= 0:
        rest = text[at : at + 40]  # longer than every needle
        for needle in needles:
            if rest.startswith(needle):
                return at, needle
            if needle.startswith(rest):
                return at, ""
        at = text.find("<", at + 1)
    return len(text), ""
