"""Pictures written by hand, as SVG: a white page, dark text, few and quiet colours."""

from collections.abc import Sequence
from html import escape

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


def line(x0: float, y0: float, x1: float, y1: float, colour: str = "#ddd", extra: str = "") -> str:
    return f'<path d="M{x0:.1f} {y0:.1f} L{x1:.1f} {y1:.1f}" stroke="{colour}" {extra}/>'


def box(x: float, y: float, width: float, height: float, colour: str) -> str:
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{colour}"/>'


def polyline(points: Sequence[tuple[float, float]], colour: str) -> str:
    places = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline points="{places}" fill="none" stroke="{colour}" stroke-width="1.6"/>'


def dot(x: float, y: float, colour: str) -> str:
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>'
