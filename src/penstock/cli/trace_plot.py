"""Hit rates over sizes of the cache, as a picture."""

import math
from collections.abc import Mapping, Sequence

from penstock.bench.svg import COLOURS, dot, labels, line, page, polyline, text
from penstock.sizes import size
from penstock.storage.replay import OPTIMUM, Replayed

WIDTH, HEIGHT, TOP, BOTTOM = 720, 400, 46, 56
LEFT, RIGHT = 64, 590
LEGEND = 606
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
    shares = [f"{capacity / total_bytes:.0%}" for capacity in sizes]
    body += labels([(across(capacity), size(capacity)) for capacity in sizes], BASE + 18, shares)
    for number, (policy, row) in enumerate(curves.items()):
        colour = OPTIMUM_COLOUR if policy == OPTIMUM else COLOURS[number % len(COLOURS)]
        places = [(across(result.capacity), height(result.hit_rate)) for result in row]
        body.append(polyline(places, colour))
        body += [dot(x, y, colour) for x, y in places]
        y = TOP + 14 + 20 * number
        body += [dot(LEGEND + 5, y - 4, colour), text(LEGEND + 18, y, policy, "start")]
    return page(WIDTH, HEIGHT, body)
