"""The way of a request as a picture, made from the real names: `python -m benchmarks.walk_picture docs/walk.svg`.

Every name is looked up in the package before it is drawn, so the picture cannot speak of what is not there.
"""

import sys
from collections.abc import Iterator
from html import escape
from importlib import import_module
from pathlib import Path
from typing import Final, NamedTuple

from penstock.native.library import native


class Stop(NamedTuple):
    """A function that a request passes: module, name in it, and what happens there."""

    module: str
    name: str
    what: str


class Floor(NamedTuple):
    """A room, what a request enters it by on the way down, and what it leaves it by on the way back."""

    room: str
    down: tuple[Stop, ...]
    up: tuple[Stop, ...]


FLOORS: Final = (
    Floor(
        "server/http",
        (Stop("server.http.limits", "AccessMiddleware", "key, size of the head"),),
        (Stop("server.http.streams", "EventStream", "server-sent events"),),
    ),
    Floor(
        "server/api",
        (Stop("server.api.openai_chat", "chat_completions", "JSON → conversation, sampling"),),
        (Stop("server.api.openai_chat", "ChatChoice.run", "events → chunks of this API"),),
    ),
    Floor(
        "chat",
        (Stop("chat.driver", "ChatDriver.reply", "conversation → prompt tokens"),),
        (Stop("chat.driver", "Reply.push", "token → events; events → turn"),),
    ),
    Floor(
        "engine",
        (
            Stop("engine.scheduler", "Scheduler.submit", "queue, slots, prefix cache"),
            Stop("engine.step_loop", "StepLoop.step", "who advances by which tokens"),
            Stop("backend.state", "Step.of", "tokens, positions, slots, rows that want logits"),
            Stop("engine.runner", "LocalRunner.begin", "one step; nothing counts before commit"),
        ),
        (
            Stop("engine.steps", "Generation.next", "token → text, stop strings"),
            Stop("engine.sampler", "Sampler.sample", "logits → token"),
            Stop("engine.runner", "LocalRunner.commit", "the step becomes part of the state"),
        ),
    ),
    Floor(
        "model",
        (
            Stop("model.deepseek_v4.model", "DeepSeekV4.forward", "embed, layer after layer"),
            Stop("model.deepseek_v4.model", "Layer.forward", "mix ► attention ► mix ► experts ► mix"),
        ),
        (Stop("model.deepseek_v4.model", "DeepSeekV4.logits", "of the rows that want them"),),
    ),
    Floor(
        "storage",
        (Stop("storage.store", "ExpertStore.acquire", "ids → lease: mapped, or memory ◄ disk"),),
        (Stop("storage.dense", "DenseWeights.head", "the output matrix, whole or in slices"),),
    ),
    Floor(
        "backend/cpu",
        (
            Stop("backend.cpu.deepseek_v4.attention", "CpuAttention.run", "reads and fills the slots' state"),
            Stop("backend.cpu.deepseek_v4.experts", "CpuExperts.run", "as they come, summed in order of id"),
        ),
        (Stop("backend.cpu.deepseek_v4.ends", "CpuHead.run", "streams → logits"),),
    ),
    Floor(
        "native",
        (
            Stop("", "ps_attention_layer_run", "attention_layer.cpp"),
            Stop("", "ps_experts", "feed_forward.cpp"),
        ),
        (Stop("", "ps_head_input", "hyper.cpp"), Stop("", "ps_products", "products.cpp")),
    ),
)

WIDTH, LEFT, RIGHT, BOX, LINE = 900, 152, 532, 345, 40

STYLE: Final = """
    .room { fill: #f3f6fa } .down { fill: #eef4fb; stroke: #3b6ea5 } .up { fill: #fff5e6; stroke: #b9772b }
    .name { font-family: ui-monospace, monospace; font-size: 13px; fill: #1d2733 }
    .what { font-size: 12px; fill: #555 } .title { font-size: 14px; font-weight: 600; fill: #1d2733 }
    .way { stroke: #555; stroke-width: 1.5; fill: none; marker-end: url(#arrow) }
"""


def check(stop: Stop) -> None:
    """Raises AttributeError or ImportError unless the name is there."""
    if not stop.module:
        getattr(native(), stop.name)
        return
    found = import_module(f"penstock.{stop.module}")
    for part in stop.name.split("."):
        found = getattr(found, part)


def draw() -> str:
    rows = [max(len(floor.down), len(floor.up)) for floor in FLOORS]
    tops = [20 + sum(LINE * count + 26 for count in rows[:number]) for number in range(len(FLOORS) + 1)]
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {tops[-1] + 6}" '
        'font-family="system-ui, sans-serif">',
        f"  <style>{STYLE}  </style>",
        '  <defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" '
        'orient="auto"><path d="M0 0 L8 4 L0 8 z" fill="#555"/></marker></defs>',
        f'  <rect width="{WIDTH}" height="{tops[-1] + 6}" fill="#ffffff"/>',
    ]
    for floor, top, count in zip(FLOORS, tops, rows, strict=False):
        height = LINE * count + 14
        parts.append(f'  <rect class="room" x="10" y="{top}" width="{WIDTH - 20}" height="{height}" rx="8"/>')
        parts.append(f'  <text class="title" x="24" y="{top + height // 2 + 5}">{floor.room}</text>')
        parts += _boxes(floor.down, LEFT, top + 7, "down")
        # On the way back the last floor's first stop comes first, so they stand from the bottom up.
        parts += _boxes(floor.up, RIGHT, top + 7 + LINE * (count - len(floor.up)), "up")
    for following in tops[1:-1]:
        parts.append(f'  <path class="way" d="M{LEFT - 14} {following - 22} V{following + 12}"/>')
        parts.append(f'  <path class="way" d="M{RIGHT + BOX + 8} {following + 12} V{following - 22}"/>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def _boxes(stops: tuple[Stop, ...], x: int, y: int, kind: str) -> Iterator[str]:
    for number, stop in enumerate(stops):
        top = y + LINE * number
        yield f'  <rect class="{kind}" x="{x}" y="{top}" width="{BOX}" height="{LINE - 5}" rx="5"/>'
        yield f'  <text class="name" x="{x + 10}" y="{top + 15}">{escape(stop.name)}</text>'
        yield f'  <text class="what" x="{x + 10}" y="{top + 30}">{escape(stop.what)}</text>'


def main() -> None:
    for floor in FLOORS:
        for stop in (*floor.down, *floor.up):
            check(stop)
    Path(sys.argv[1]).write_text(draw())


if __name__ == "__main__":
    main()
