"""Formulas as MathML, which browsers draw themselves."""

from html import unescape
from typing import Final
from xml.etree.ElementTree import Element

from penstock.server.page.tree import Node, node

LONGEST: Final = 2000  # characters; a longer one is shown as it was written
# Nothing that links, runs or styles: `\href`, `\class` and `\style` could write those.
TAGS: Final = frozenset(
    str.split(
        "math menclose mfrac mi mmultiscripts mn mo mover mpadded mphantom mprescripts mroot mrow mspace msqrt "
        "mstyle msub msubsup msup mtable mtd mtext mtr munder munderover none"
    )
)
ATTRIBUTES: Final = frozenset(
    str.split(
        "accent accentunder columnalign columnlines columnspacing depth display displaystyle fence form height "
        "largeop linebreak linethickness lspace mathbackground mathcolor mathsize mathvariant maxsize minsize "
        "movablelimits notation rowlines rowspacing rspace scriptlevel separator stretchy symmetric voffset width"
    )
)


def formula(source: str, displayed: bool) -> Node:
    """As MathML; as code if it cannot be read."""
    from latex2mathml.converter import convert_to_element

    try:
        if len(source) > LONGEST or not source:
            raise ValueError
        return _node(convert_to_element(source, display="block" if displayed else "inline"))
    except (
        Exception
    ):  # the library has a class for each of many mistakes, and runs out of recursion at others
        return node("pre", [source], lang="latex") if displayed else node("code", [source])


def _node(element: Element) -> Node:
    if element.tag not in TAGS:
        raise ValueError(element.tag)
    children: list[Node] = [unescape(element.text)] if element.text else []  # it writes signs as &#x0003C;
    children += [_node(child) for child in element]
    return [element.tag, {name: value for name, value in element.items() if name in ATTRIBUTES}, children]
