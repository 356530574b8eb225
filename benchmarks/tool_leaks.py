"""How often a tool call shows as text: turns with tools on the pocket model, through the chat API, streamed.

    python -m benchmarks.tool_leaks --turns 1000
    python -m benchmarks.tool_leaks --turns 100 --temperatures 1.5 --json leaks.json

A leak is a piece of DSML in what a person would read, in the answer or in the reasoning, or a call whose arguments
are not a JSON object.  Turns come from the pocket model's own generator: calls of tools it has seen and of tools it
has not, one or several at a time, answers after results, questions that need no tool, thinking or not.  Every
eighth turn must call.  Whether a call is the right one does not matter here.
"""

import argparse
import json
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from benchmarks import machine
from benchmarks.children import ChildError
from benchmarks.serve_cases import CHAT
from benchmarks.serve_client import Ask, Heard, Lane, play
from benchmarks.served import Served
from benchmarks.vs_llamacpp import numbers
from penstock.chat.messages import Conversation, Message, Role, Thinking
from penstock.errors import OptionError, PenstockError
from pocket.data import problem, sample

LANES: Final = 8
FORCED: Final = 8  # every so many-th turn must call
MOST_TOKENS: Final = 600
PIECE: Final = re.compile(r"DSML|(tool|function)_calls>|<｜|｜>|<?/?invoke( name=|>)|</?parameter[ >]")


@dataclass(frozen=True)
class Leak:
    """A turn that shows what it should not."""

    temperature: float
    where: str
    shown: str
    finish: str | None


@dataclass(frozen=True)
class Tally:
    """The turns at one temperature."""

    temperature: float
    turns: int
    calling: int  # turns with calls
    calls: int
    cut: int  # turns that ran out of tokens
    errors: int
    leaks: int


# ── turns ─────────────────────────────────────────────────────────────────────────────────────────────────


def turns(seed: int) -> Iterator[Conversation]:
    """Conversations that wait for an assistant with tools, without end."""
    rng = Random(f"leaks:{seed}")
    while True:
        yield problem("tools", rng).conversation
        whole = sample("tools", rng)
        for place, message in enumerate(whole.messages):
            if message.role is Role.ASSISTANT:
                yield Conversation(whole.messages[:place], whole.tools, whole.thinking)


def ask(conversation: Conversation, temperature: float, number: int) -> Ask:
    body: dict[str, Any] = {
        "messages": [_message(message) for message in conversation.messages],
        "tools": [{"type": "function", "function": tool} for tool in conversation.tools],
        "thinking": {"type": "disabled" if conversation.thinking is Thinking.OFF else "enabled"},
        "temperature": temperature,
        "seed": number,
        "max_tokens": MOST_TOKENS,
    }
    if number % FORCED == 0:
        body["tool_choice"] = "required"
    return Ask(CHAT, body)


def _message(message: Message) -> dict[str, Any]:
    made: dict[str, Any] = {"role": message.role.value, "content": message.content}
    if message.reasoning is not None:
        made["reasoning_content"] = message.reasoning
    if message.tool_call_id is not None:
        made["tool_call_id"] = message.tool_call_id
    if message.tool_calls:
        made["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.tool_calls
        ]
    return made


# ── judging ───────────────────────────────────────────────────────────────────────────────────────────────


def leaks(heard: Heard, temperature: float) -> Iterator[Leak]:
    for where, text in (("answer", heard.text), ("reasoning", heard.reasoning)):
        if found := PIECE.search(text):
            shown = text[max(0, found.start() - 60) : found.end() + 60]
            yield Leak(temperature, where, shown, heard.finish)
    for call in heard.calls:
        if not _is_object(call["arguments"]):
            yield Leak(temperature, "arguments", call["arguments"][:120], heard.finish)


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False


def tally(found: Sequence[Heard], temperature: float) -> tuple[Tally, list[Leak]]:
    leaked = [list(leaks(heard, temperature)) for heard in found]
    counted = Tally(
        temperature,
        len(found),
        sum(bool(heard.calls) for heard in found),
        sum(len(heard.calls) for heard in found),
        sum(heard.finish == "length" for heard in found),
        sum(heard.error is not None or not heard.complete for heard in found),
        sum(bool(some) for some in leaked),
    )
    return counted, [leak for some in leaked for leak in some]


# ── command line ──────────────────────────────────────────────────────────────────────────────────────────


def table(tallies: Sequence[Tally]) -> Table:
    shown = Table(title="tool calls that show as text", title_justify="left")
    for column in (
        "temperature",
        "turns",
        "with calls",
        "calls",
        "cut off",
        "errors",
        "leaks",
        "target",
        "met",
    ):
        shown.add_column(column, justify="right")
    for one in tallies:
        counts = (one.turns, one.calling, one.calls, one.cut, one.errors, one.leaks)
        met = "yes" if one.leaks == one.errors == 0 else "no"
        shown.add_row(f"{one.temperature:g}", *(f"{count:,}" for count in counts), "0", met)
    return shown


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tool_leaks")
    add = parser.add_argument
    add("--turns", type=int, default=1000, help="in all")
    add("--temperatures", default="0,0.7,1")
    add("--seed", type=int, default=1)
    add("--json", type=Path, help="write every number to this file")
    return parser


def run(options: argparse.Namespace, console: Console) -> list[Tally]:
    numbers(str(options.turns), "turns")
    try:
        temperatures = [float(part) for part in options.temperatures.split(",")]
    except ValueError:
        raise OptionError(
            f"--temperatures is {options.temperatures!r}, expected numbers such as 0,0.7"
        ) from None
    say = partial(console.print, markup=False, soft_wrap=True)
    say(machine.sentence())
    source = turns(options.seed)
    tallies: list[Tally] = []
    leaked: list[Leak] = []
    with Served("--parallel", str(LANES)) as server:
        for place, temperature in enumerate(temperatures):
            share = options.turns * (place + 1) // len(temperatures) - options.turns * place // len(
                temperatures
            )
            asks = [ask(next(source), temperature, number) for number in range(share)]
            say(f"· {share} turns at temperature {temperature:g} …")
            found = play(server.url, [Lane(asks[first::LANES]) for first in range(min(LANES, share))])
            counted, some = tally(found, temperature)
            tallies.append(counted)
            leaked += some
        server.end()
    console.print(table(tallies))
    for leak in leaked[:20]:
        say(f"  {leak.temperature:g} {leak.where} ({leak.finish}): {leak.shown!r}")
    if options.json:
        report = {"machine": machine.describe(), "seed": options.seed}
        found_all = {"tallies": [asdict(one) for one in tallies], "leaks": [asdict(leak) for leak in leaked]}
        options.json.write_text(json.dumps(report | found_all, indent=1) + "\n")
    return tallies


def main() -> None:
    options = arguments().parse_args()
    try:
        run(options, Console(width=None if sys.stdout.isatty() else 170, highlight=False))
    except (PenstockError, ChildError) as error:
        sys.exit(f"tool_leaks: {error}")
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
