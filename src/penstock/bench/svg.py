"""Pictures written by hand, as SVG: a white page, dark text, few and quiet colours."""

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Final

from penstock.errors import OptionError

LETTER: Final = 7.2  # width of one, on average and rather too much than too little
GAP: Final = 6.0  # between two labels
QUIET: Final = "#6b6f8a"
COLOURS = (
    "#3b6ea5",
    "#b9772b",
    "#5a8f4e",
    "#8a4f8f",
    "#a3484a",
    "#4f9a9a",
    "#c2a83e",
    "#6b6f8a",
    "#9aa3ad",
)


def page(width: int, height: int, body: Sequence[str]) -> str:
    """The whole file."""
    box = f'viewBox="0 0 {width} {height}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {box} font-family="system-ui, sans-serif"'
    return "\n".join(
        [
            f'{head} font-size="12">',
            f'<rect width="{width}" height="{height}" fill="#fff"/>',
            *body,
            "</svg>\n",
        ]
    )


def text(
    x: float, y: float, content: str, anchor: str = "middle", extra: str = "", colour: str = "#1d2733"
) -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f'<text {place} fill="{colour}" {extra}>{escape(content)}</text>'


def labels(places: Sequence[tuple[float, str]], y: float, below: Sequence[str] = ()) -> list[str]:
    """Labels of an axis, from left to right, with what stands `below` each.  One that would touch its neighbour is
    left out, the first and the last after all others."""
    widths = [
        LETTER * max(len(content), len(below[number]) if below else 0) + GAP
        for number, (_, content) in enumerate(places)
    ]

    def apart(left: int, right: int) -> bool:
        return places[right][0] - places[left][0] >= (widths[left] + widths[right]) / 2

    kept = [0] if places else []
    last = len(places) - 1
    for number in range(1, last):
        if apart(kept[-1], number) and apart(number, last):
            kept.append(number)
    if last > 0 and apart(kept[-1], last):
        kept.append(last)
    found = [text(places[number][0], y, places[number][1]) for number in kept]
    return found + [text(places[number][0], y + 16, below[number], colour=QUIET) for number in kept if below]


def check_picture(path: Path, flag: str) -> None:
    """Before anything is measured: what is drawn is SVG, whatever a file is called."""
    if path.suffix.lower() != ".svg":
        raise OptionError(f"{flag} {path}: pictures are SVG, expected a name that ends in .svg")


def line(x0: float, y0: float, x1: float, y1: float, colour: str = "#ddd", extra: str = "") -> str:
    return f'<path d="M{x0:.1f} {y0:.1f} L{x1:.1f} {y1:.1f}" stroke="{colour}" {extra}/>'


def box(x: float, y: float, width: float, height: float, colour: str) -> str:
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{colour}"/>'


def polyline(points: Sequence[tuple[float, float]], colour: str) -> str:
    places = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline points="{places}" fill="none" stroke="{colour}" stroke-width="1.6"/>'


def dot(x: float, y: float, colour: str) -> str:
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>'
