"""Two pictures of a training run, as SVG.

python -m pocket.plot curves build/pocket/log.jsonl curves.svg
python -m pocket.plot experts build/pocket/experts.json experts.svg
"""

import argparse
import json
import math
from pathlib import Path
from typing import Any

from penstock.bench.svg import COLOURS, page, text

WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 860, 360, 60, 30, 50
LOWEST, HIGHEST = 0.005, 8.0
TICKS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 4, 8)


def curves(entries: list[dict[str, Any]]) -> str:
    """Losses over steps, phases shaded."""
    trunk = [entry for entry in entries if entry["phase"] != "draft"]
    series = {
        "assistant's tokens": [(e["step"], e["assistant"]) for e in trunk],
        "looked up": [(e["step"], e["lookup"]) for e in trunk],
        "indexer (KL)": [(e["step"], e["index"]) for e in trunk],
        "draft block": [(e["step"], e["assistant"]) for e in entries if e["phase"] == "draft"],
    }
    last = entries[-1]["step"]
    inner, tall = WIDTH - LEFT - 20, HEIGHT - TOP - BOTTOM

    def height(value: float) -> float:
        """Losses span two decades, so the scale is logarithmic."""
        low, high = math.log(LOWEST), math.log(HIGHEST)
        return TOP + tall * (high - math.log(min(max(value, LOWEST), HIGHEST))) / (high - low)

    def place(step: int, value: float) -> str:
        return f"{LEFT + inner * step / last:.1f},{height(value):.1f}"

    body = []
    names = list(dict.fromkeys(entry["phase"] for entry in entries))
    for number, name in enumerate(names):
        steps = [entry["step"] for entry in entries if entry["phase"] == name]
        first = 0 if number == 0 else min(steps) - 50
        x0, x1 = (LEFT + inner * s / last for s in (first, max(steps)))
        shade = ("#f4f7fb", "#eaf1e8")[number % 2]
        place_and_size = f'x="{x0:.1f}" y="{TOP}" width="{x1 - x0:.1f}" height="{tall}"'
        body.append(f'<rect {place_and_size} fill="{shade}"/>')
        body.append(text((x0 + x1) / 2, TOP - 10, name))
    for tick in TICKS:
        body.append(f'<path d="M{LEFT} {height(tick):.1f} H{LEFT + inner}" stroke="#ddd"/>')
        body.append(text(LEFT - 8, height(tick) + 4, f"{tick:g}", "end"))
    for number, (label, values) in enumerate(series.items()):
        points = " ".join(place(step, value) for step, value in values)
        body.append(
            f'<polyline points="{points}" fill="none" stroke="{COLOURS[number]}" stroke-width="1.6"/>'
        )
        body.append(text(LEFT + 100 + 190 * number, HEIGHT - 10, label, colour=COLOURS[number]))
    body.append(text(LEFT + inner, HEIGHT - 32, f"{last:,} steps", "end"))
    return page(WIDTH, HEIGHT, body)


def experts(use: dict[str, list[list[float]]]) -> str:
    """For each skill, how often each expert (column) of each layer (row) was chosen; even use is mid-blue."""
    cell, gap = 9, 26
    skills = list(use)
    layers, count = len(use[skills[0]]), len(use[skills[0]][0])
    across = 4
    block_w, block_h = count * cell + gap, layers * cell + 40
    body = []
    for number, skill in enumerate(skills):
        x0, y0 = 20 + (number % across) * block_w, 30 + (number // across) * block_h
        body.append(text(x0, y0 - 6, skill, "start"))
        for layer, row in enumerate(use[skill]):
            for expert, share in enumerate(row):
                shade = min(1.0, share * count / 3)  # three times an even share is the darkest
                body.append(
                    f'<rect x="{x0 + expert * cell}" y="{y0 + layer * cell}" width="{cell - 1}" height="{cell - 1}" '
                    f'fill="#1f4e86" fill-opacity="{0.05 + 0.95 * shade:.2f}"/>'
                )
    rows = -(-len(skills) // across)
    return page(20 + across * block_w, 30 + rows * block_h, body)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m pocket.plot")
    parser.add_argument("what", choices=("curves", "experts"))
    parser.add_argument("source", type=Path)
    parser.add_argument("out", type=Path)
    options = parser.parse_args()
    if options.what == "curves":
        entries = [json.loads(line) for line in options.source.read_text().splitlines()]
        options.out.write_text(curves(entries))
    else:
        options.out.write_text(experts(json.loads(options.source.read_text())))


if __name__ == "__main__":
    main()
