"""Tokens per second against memory, as a picture."""

import math
from collections.abc import Mapping

from penstock.bench.plot import _round_step
from penstock.bench.svg import COLOURS, dot, labels, line, page, polyline, text

WIDTH, HEIGHT, TOP, BOTTOM = 560, 360, 46, 56
LEFT, RIGHT = 64, WIDTH - 24
BASE = HEIGHT - BOTTOM


def draw(title: str, speeds: Mapping[float, float], unlimited: float | None) -> str:
    """`speeds`: by GiB of memory.  A dashed line where all of the model is in memory."""
    highest = max(*speeds.values(), unlimited or 0.0)
    step = _round_step(highest / 5)
    top, most = step * math.ceil(highest / step), max(speeds)

    def across(gib: float) -> float:
        return LEFT + (RIGHT - LEFT) * gib / most

    def height(speed: float) -> float:
        return BASE - (BASE - TOP) * speed / top

    body = [text(20, 20, title, "start"), text((LEFT + RIGHT) / 2, HEIGHT - 10, "memory, GiB")]
    body.append(text(LEFT, TOP - 8, "decoded tokens per second", "start"))
    for number in range(round(top / step) + 1):
        y = height(number * step)
        body += [line(LEFT, y, RIGHT, y), text(LEFT - 8, y + 4, f"{number * step:g}", "end")]
    if unlimited:
        y = height(unlimited)
        body.append(line(LEFT, y, RIGHT, y, COLOURS[1], 'stroke-dasharray="4 3"'))
        body.append(text(LEFT + 6, y - 6, "all in memory", "start", colour=COLOURS[1]))
    places = [(across(gib), height(speed)) for gib, speed in sorted(speeds.items())]
    body.append(polyline(places, COLOURS[0]))
    body += [dot(x, y, COLOURS[0]) for x, y in places]
    body += labels([(across(gib), f"{gib:g}") for gib in sorted(speeds)], BASE + 18)
    return page(WIDTH, HEIGHT, body)
