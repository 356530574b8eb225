"""What is shown, as a tree that JSON can carry: a node is a text, or [tag, attributes, children].

The page makes elements of it and nothing else, so no text that a model writes is ever read as HTML, here or there.
"""

from typing import Any

Node = str | list[Any]


def node(tag: str, children: list[Node] | None = None, **attributes: str) -> Node:
    """
    >>> node("p", ["Hello ", node("em", ["you"])])
    ['p', {}, ['Hello ', ['em', {}, ['you']]]]
    """
    return [tag, attributes, [] if children is None else children]


def add_text(children: list[Node], text: str) -> None:
    """Texts that follow each other are one."""
    if children and isinstance(children[-1], str):
        children[-1] += text
    elif text:
        children.append(text)
