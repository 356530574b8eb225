"""Hit rates over sizes of the cache, as a picture."""

import math
from collections.abc import Mapping, Sequence

from penstock.bench.svg import COLOURS, dot, line, page, polyline, text
from penstock.sizes import size
from penstock.storage.replay import OPTIMUM, Replayed

WIDTH, HEIGHT, TOP, BOTTOM = 720, 400, 46, 56
LEFT, RIGHT = 64, 590
LEGEND = 606
LABEL = 66  # width of a size's label
BASE = HEIGHT - BOTTOM
OPTIMUM_COLOUR = "#1d2733"


def draw(name: str, total_bytes: int, curves: Mapping[str, Sequence[Replayed]]) -> str:
    """One line per policy.  Sizes are spread by their logarithm: the interesting ones are small."""
    sizes = [result.capacity for result in next(iter(curves.values()))]
    first, last = math.log(sizes[0]), math.log(sizes[-1])

    def across(capacity: int) -> float:
        return (
            LEFT
            + 20
            + (RIGHT - LEFT - 40) * ((math.log(capacity) - first) / (last - first) if last > first else 0.5)
        )

    def height(rate: float) -> float:
        return BASE - (BASE - TOP) * rate

    body = [text(20, 20, name, "start"), text((LEFT + RIGHT) / 2, TOP - 8, "experts found in memory")]
    for percent in range(0, 101, 20):
        y = height(percent / 100)
        body += [line(LEFT, y, RIGHT, y), text(LEFT - 8, y + 4, f"{percent}%", "end")]
    free = 0.0  # labels that would touch are left out
    for x, capacity in ((across(capacity), capacity) for capacity in sizes):
        if x >= free:
            free = x + LABEL
            body.append(text(x, BASE + 18, size(capacity)))
            body.append(text(x, BASE + 34, f"{capacity / total_bytes:.0%}", colour="#6b6f8a"))
    for number, (policy, row) in enumerate(curves.items()):
        colour = OPTIMUM_COLOUR if policy == OPTIMUM else COLOURS[number % len(COLOURS)]
        places = [(across(result.capacity), height(result.hit_rate)) for result in row]
        body.append(polyline(places, colour))
        body += [dot(x, y, colour) for x, y in places]
        y = TOP + 14 + 20 * number
        body += [dot(LEGEND + 5, y - 4, colour), text(LEGEND + 18, y, policy, "start")]
    return page(WIDTH, HEIGHT, body)
