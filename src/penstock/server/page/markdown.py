"""Markdown as trees of elements: CommonMark with tables, strikethrough, task lists, bare links and formulas.

Raw HTML is text like any other.  Links lead to the web or to a mailbox, pictures become links: a page that shows what
a model wrote fetches nothing.
"""

import re
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, Final, NamedTuple

from markdown_it import MarkdownIt
from markdown_it.token import Token

from penstock.server.page import math_rules
from penstock.server.page.code import highlighted
from penstock.server.page.formulas import formula
from penstock.server.page.tree import Node, add_text, node

SCHEMES: Final = re.compile(r"(https?://|mailto:)", re.IGNORECASE)
TASK: Final = re.compile(r"\[([ xX])\]\s+")
ALIGNED: Final = re.compile(r"text-align:(left|center|right)")
HEADINGS: Final = {
    "h1": "h3",
    "h2": "h4",
    "h3": "h5",
}  # the page has titles of its own above; the rest are h6


class Block(NamedTuple):
    """A top-level block.  line: where it begins; open: it is code whose end has not come yet."""

    line: int
    node: Node
    open: bool


@cache
def _parser() -> MarkdownIt:
    parser = MarkdownIt("commonmark", {"html": False, "linkify": True})
    parser.enable(["table", "strikethrough", "linkify"]).use(math_rules.math_rules)
    parser.validateLink = lambda url: SCHEMES.match(url) is not None  # type: ignore[method-assign]
    assert parser.linkify is not None
    parser.linkify.set(
        {"fuzzy_link": False, "fuzzy_email": False, "fuzzy_ip": False}
    )  # main.py is no address
    return parser


def blocks(text: str) -> list[Block]:
    """
    >>> blocks("Hi *you*")
    [Block(line=0, node=['p', {}, ['Hi ', ['em', {}, ['you']]]], open=False)]
    """
    lines = re.split(r"\r\n?|\n", text)
    tokens = _parser().parse(text)
    found: list[Block] = []
    for begin, end in _top_level(tokens):
        made = _nodes(tokens[begin:end])
        first = tokens[begin]
        if made and first.map is not None:
            found.append(Block(first.map[0], made[0], _is_open(first, lines)))
    return found


def _top_level(tokens: Sequence[Token]) -> Iterator[tuple[int, int]]:
    depth = begin = 0
    for index, token in enumerate(tokens):
        depth += token.nesting
        if depth == 0:
            yield begin, index + 1
            begin = index + 1


def _is_open(token: Token, lines: list[str]) -> bool:
    if token.type != "fence" or token.map is None:
        return False
    last = lines[token.map[1] - 1].strip() if token.map[1] <= len(lines) else ""
    closed = (
        token.map[1] - 1 > token.map[0] and last.startswith(token.markup) and not last.strip(token.markup[0])
    )
    return not closed


def _nodes(tokens: Sequence[Token]) -> list[Node]:
    """Tokens come in order, with opening and closing ones around what is inside."""
    top: list[Node] = []
    stack = [top]
    begins_item = False
    for token in tokens:
        if token.nesting == 1:
            made = _element(token)
            if not token.hidden:  # as the paragraph in an item of a tight list is
                stack[-1].append(made)
            stack.append(stack[-1] if token.hidden else made[2])
        elif token.nesting == -1:
            stack.pop()
        elif token.type == "inline":
            inside = _nodes(token.children or [])
            stack[-1].extend(_with_box(inside) if begins_item else inside)
        else:
            _add_leaf(stack[-1], token)
        begins_item = token.type == "list_item_open" or (begins_item and token.type == "paragraph_open")
    return top


def _with_box(item: list[Node]) -> list[Node]:
    """`[x] words` is a task that is done."""
    task = TASK.match(item[0]) if item and isinstance(item[0], str) else None
    if task is None:
        return item
    box = ["input", {"type": "checkbox"} | ({} if task[1] == " " else {"checked": ""}), []]
    return [box, " " + task.string[task.end() :], *item[1:]]


def _element(token: Token) -> list[Any]:
    attributes: dict[str, str] = {}
    tag = token.tag
    if tag[0] == "h" and tag[1:].isdigit():
        tag = HEADINGS.get(tag, "h6")
    elif tag == "a":
        attributes = {"href": str(token.attrGet("href")), **_title(token)}
    elif tag == "ol" and token.attrGet("start") is not None:
        attributes = {"start": str(token.attrGet("start"))}
    elif tag in ("td", "th") and (aligned := ALIGNED.match(str(token.attrGet("style")))):
        attributes = {"class": aligned[1]}
    return [tag, attributes, []]


def _add_leaf(place: list[Node], token: Token) -> None:
    match token.type:
        case "text" | "text_special":
            add_text(place, token.content)
        case "softbreak" | "hardbreak":  # people and models mean a line when they begin a line
            place.append(node("br"))
        case "code_inline":
            place.append(node("code", [token.content]))
        case "fence" | "code_block":
            language = token.info.split()[0][:40] if token.info.split() else ""
            place.append(node("pre", highlighted(token.content.removesuffix("\n"), language), lang=language))
        case "image":
            address = str(token.attrGet("src"))
            place.append(node("a", [token.content or address], href=address, **_title(token)))
        case math_rules.INLINE:
            place.append(formula(token.content, token.meta["displayed"]))
        case math_rules.BLOCK:
            place.append(formula(token.content, displayed=True))
        case "hr":
            place.append(node("hr"))
        case other:
            raise AssertionError(f"nobody shows {other}")


def _title(token: Token) -> dict[str, str]:
    title = token.attrGet("title")
    return {"title": str(title)} if title else {}
