"""A benchmark as a picture: speed over context on the left, the time of a decoded token by part on the right."""

import math

from penstock.bench.report import Point, Report
from penstock.bench.svg import COLOURS, box, dot, labels, line, page, polyline, text
from penstock.bench.traffic import Part

WIDTH, HEIGHT, TOP, BOTTOM = 860, 380, 46, 56
SPEED = (64, 380)  # left and right edge of each panel
TIME = (464, 690)
LEGEND = 706
TALL = HEIGHT - TOP - BOTTOM
BASE = HEIGHT - BOTTOM
MANY = 5  # powers of ten on an axis beyond which nothing between them is named


def draw(report: Report) -> str:
    title = f"{report.model.rsplit('/', 1)[-1]}, {report.threads} thread{'s' * (report.threads > 1)}"
    return page(WIDTH, HEIGHT, [text(20, 20, title, "start"), *_speeds(report), *_times(report)])


def _speeds(report: Report) -> list[str]:
    """Prefill is tens of times faster than decoding, so the scale is logarithmic."""
    points = report.points
    speeds = [timing.per_second for point in points for timing in (point.prefill, point.decode)]
    low, high = math.floor(math.log10(min(speeds))), math.ceil(math.log10(max(speeds)) + 1e-9)

    def height(speed: float) -> float:
        return BASE - TALL * (math.log10(speed) - low) / max(high - low, 1)

    left, right = SPEED
    body = [text((left + right) / 2, TOP - 8, "tokens per second")]
    for power in range(low, high + 1):
        for digit in (1, 2, 5) if power < high and high - low <= MANY else (1,):
            tick = digit * 10.0**power
            body += [line(left, height(tick), right, height(tick)), _tick(left, height(tick), f"{tick:g}")]
    for number, (name, phase) in enumerate((("prefill", "prefill"), ("decode", "decode"))):
        places = [(_across(point, points), height(getattr(point, phase).per_second)) for point in points]
        body.append(polyline(places, COLOURS[number]))
        body += [dot(x, y, COLOURS[number]) for x, y in places]
        body.append(text(left + 90 + 140 * number, HEIGHT - 10, name, colour=COLOURS[number]))
    return body + labels([(_across(point, points), short(point.context)) for point in points], BASE + 18)


def _across(point: Point, points: tuple[Point, ...]) -> float:
    """Frontiers usually double or quadruple, so they are spread by their logarithm."""
    left, right = SPEED[0] + 20, SPEED[1] - 20
    first, last = math.log(points[0].context), math.log(points[-1].context)
    return left + (right - left) * (
        (math.log(point.context) - first) / (last - first) if last > first else 0.5
    )


def _times(report: Report) -> list[str]:
    left, right = TIME
    points = report.points
    highest = max(1e3 * max(p.decode.seconds / p.decode.tokens, p.floor_s) for p in points)
    step = _round_step(highest / 5)
    top = step * math.ceil(highest / step)
    body = [text((left + right) / 2, TOP - 8, "milliseconds per decoded token, by context")]

    def height(ms: float) -> float:
        return BASE - TALL * ms / top

    for number in range(round(top / step) + 1):
        y = height(number * step)
        body += [line(left, y, right, y), _tick(left, y, f"{number * step:g}")]
    slot = (right - left) / len(points)
    for number, point in enumerate(points):
        x, width, done = left + slot * (number + 0.2), slot * 0.6, 0.0
        for part in report.parts:
            ms = 1e3 * max(point.decode.parts.get(part, 0.0), 0.0) / point.decode.tokens
            body.append(box(x, height(done + ms), width, height(done) - height(done + ms), colour_of(part)))
            done += ms
        floor = height(1e3 * point.floor_s)
        body.append(line(x - 5, floor, x + width + 5, floor, "#1d2733", 'stroke-dasharray="4 3"'))
    middles = [left + slot * (number + 0.5) for number in range(len(points))]
    shown = [(x, short(point.context)) for x, point in zip(middles, points, strict=True)]
    body += labels(shown, BASE + 18)
    for number, part in enumerate(reversed(report.parts)):
        y = TOP + 14 + 20 * number
        body += [box(LEGEND, y - 10, 12, 12, colour_of(part)), text(LEGEND + 18, y, part.value, "start")]
    y = TOP + 14 + 20 * len(report.parts)
    body.append(line(LEGEND - 2, y - 4, LEGEND + 14, y - 4, "#1d2733", 'stroke-dasharray="4 3"'))
    body.append(text(LEGEND + 18, y, "reading memory", "start"))
    return body


def colour_of(part: Part) -> str:
    return COLOURS[list(Part).index(part)]


def _tick(x: float, y: float, label: str) -> str:
    return text(x - 8, y + 4, label, "end")


def _round_step(rough: float) -> float:
    """1, 2 or 5 times a power of ten, not below `rough`."""
    power = 10.0 ** math.floor(math.log10(rough))
    return next(digit * power for digit in (1, 2, 5, 10) if digit * power >= rough)


def short(count: int) -> str:
    """8192 → "8k" """
    for unit, name in ((1 << 20, "m"), (1 << 10, "k")):
        if count % unit == 0:
            return f"{count // unit}{name}"
    return f"{count:,}"
