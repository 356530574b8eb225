"""Highlighted code: spans with Pygments' short names of classes, which the page's style sheet colours."""

from typing import Final

from penstock.server.page.cpu_limit import cpu_limit
from penstock.server.page.tree import Node, add_text, node

LONGEST: Final = 1 << 15  # characters; a longer block is shown plain
SECONDS: Final = 0.5  # of computing: some lexers take for ever over a page of blanks or quotes
PLAIN: Final = ("", "text", "plain", "plaintext", "txt")


def highlighted(source: str, language: str) -> list[Node]:
    """The code in pieces, all of it whatever happens."""
    if language.lower() in PLAIN or len(source) > LONGEST:
        return [source]
    from pygments.lexers import get_lexer_by_name
    from pygments.token import STANDARD_TYPES
    from pygments.util import ClassNotFound

    try:
        # What a lexer would add or take away belongs to the text.
        lexer = get_lexer_by_name(language.lower(), stripnl=False, ensurenl=False)
        with cpu_limit(SECONDS):
            found = list(lexer.get_tokens(source))
    except (ClassNotFound, TimeoutError):
        return [source]
    pieces: list[Node] = []
    for kind, text in found:
        while kind not in STANDARD_TYPES:  # a lexer's own kinds are parts of those
            kind = kind.parent
        style = STANDARD_TYPES[kind]
        if style in ("", "w"):
            add_text(pieces, text)
        elif pieces and isinstance(pieces[-1], list) and pieces[-1][1]["class"] == style:
            add_text(pieces[-1][2], text)
        else:
            pieces.append(node("span", [text], **{"class": style}))
    return pieces
