"""Clients of a server, many at once, in a process of their own: what they heard, and when.

    echo '{"url": …, "lanes": […]}' | python -m benchmarks.serve_client

A lane is one client after another: its requests in order, once, or again and again until `seconds` have passed.  A
lane without end is given up when all others have ended.  Whatever can wait until the end is done then: on a small
machine every microsecond of a client is taken from the server.
"""

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import count
from typing import Any, Final

import httpx

from benchmarks.children import ROOT, ChildError

TIMEOUT_S: Final = 600.0
CHAT_DONE: Final = b"data: [DONE]"


@dataclass(frozen=True)
class Ask:
    """A request that is answered with a stream."""

    path: str
    body: dict[str, Any]


@dataclass(frozen=True)
class Lane:
    """Requests that follow one another, `after` so many seconds."""

    asks: list[Ask]
    after: float = 0.0
    again: bool = False  # until the time is over
    endless: bool = False  # given up when the others have ended


@dataclass
class Heard:
    """One answer.  Times are of `time.perf_counter`, which all processes of a machine share."""

    lane: int
    ask: int  # which of the lane's
    begin: float
    times: list[float] = field(default_factory=list)  # of events with something in them
    text: str = ""
    reasoning: str = ""
    calls: list[dict[str, str]] = field(default_factory=list)  # name and arguments
    finish: str | None = None
    complete: bool = False  # its end was heard
    usage: dict[str, Any] = field(default_factory=dict)
    error: str | None = None

    @property
    def tokens(self) -> int:
        return int(self.usage.get("completion_tokens", 0))

    @property
    def cached(self) -> int:
        return int(self.usage.get("prompt_tokens_details", {}).get("cached_tokens", 0))

    @property
    def first_s(self) -> float:
        """Seconds to the first token."""
        return self.times[0] - self.begin

    @property
    def gaps(self) -> list[float]:
        """Seconds between tokens."""
        return [late - early for early, late in zip(self.times, self.times[1:], strict=False)]


def play(url: str, lanes: Sequence[Lane], seconds: float = 0.0) -> list[Heard]:
    """Lets clients in a new process talk to the server."""
    order = {"url": url, "lanes": [asdict(lane) for lane in lanes], "seconds": seconds}
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.serve_client"],
        input=json.dumps(order),
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    if done.returncode != 0:
        raise ChildError(f"the clients ended with status {done.returncode}:\n{done.stderr[-2000:]}")
    return [Heard(**found) for found in json.loads(done.stdout)]


# ── in the process of the clients ─────────────────────────────────────────────────────────────────────────


@dataclass
class _Raw:
    """An answer as it came."""

    heard: Heard
    events: list[tuple[float, bytes]] = field(default_factory=list)


def heard_from(heard: Heard, events: Sequence[tuple[float, bytes]]) -> Heard:
    """What the events say, put into `heard`."""
    calls: dict[int, dict[str, str]] = {}
    for at, event in events:
        if event == CHAT_DONE:
            heard.complete = True
        if not event.startswith(b"data: {"):
            continue  # the end, or a sign of life
        payload = json.loads(event[6:])
        if "error" in payload:
            heard.error = payload["error"]["message"]
            continue
        heard.usage = payload.get("usage") or heard.usage
        for choice in payload["choices"]:
            if _says(heard, choice, calls):
                heard.times.append(at)
            heard.finish = choice.get("finish_reason") or heard.finish
    heard.calls = list(calls.values())
    return heard


def _says(heard: Heard, choice: dict[str, Any], calls: dict[int, dict[str, str]]) -> bool:
    """Whether the model has said something."""
    if "text" in choice:
        heard.text += choice["text"]
        return bool(choice["text"])
    delta = choice["delta"]
    heard.text += delta.get("content") or ""
    heard.reasoning += delta.get("reasoning_content") or ""
    for call in delta.get("tool_calls", ()):
        whole = calls.setdefault(call["index"], {"name": "", "arguments": ""})
        whole["name"] += call["function"].get("name", "")
        whole["arguments"] += call["function"]["arguments"]
    return bool(delta.keys() - {"role"})


async def _ask(client: httpx.AsyncClient, ask: Ask, raw: _Raw) -> None:
    body = {**ask.body, "stream": True, "stream_options": {"include_usage": True}}
    try:
        async with client.stream("POST", ask.path, json=body) as response:
            if response.status_code != 200:
                text = (await response.aread()).decode(errors="replace")
                raw.heard.error = f"status {response.status_code}: {text[:300]}"
                return
            rest = b""
            async for chunk in response.aiter_raw():
                now = time.perf_counter()
                *events, rest = (rest + chunk).split(b"\n\n")
                raw.events += [(now, event) for event in events]
    except httpx.HTTPError as error:
        raw.heard.error = repr(error)


async def _run(url: str, lanes: list[Lane], seconds: float) -> list[_Raw]:
    found: list[_Raw] = []
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=TIMEOUT_S, limits=limits) as client:
        end = time.perf_counter() + seconds

        async def run(number: int, lane: Lane) -> None:
            await asyncio.sleep(lane.after)
            for turn in count():
                over = time.perf_counter() >= end if lane.again else turn >= len(lane.asks)
                if over and not lane.endless:
                    return
                index = turn % len(lane.asks)
                raw = _Raw(Heard(number, index, time.perf_counter()))
                found.append(raw)
                await _ask(client, lane.asks[index], raw)

        tasks = [asyncio.create_task(run(number, lane)) for number, lane in enumerate(lanes)]
        await asyncio.gather(*(task for task, lane in zip(tasks, lanes, strict=True) if not lane.endless))
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return found


def main() -> None:
    order = json.load(sys.stdin)
    lanes = [Lane(**{**lane, "asks": [Ask(**ask) for ask in lane["asks"]]}) for lane in order["lanes"]]
    found = asyncio.run(_run(order["url"], lanes, order["seconds"]))
    json.dump([asdict(heard_from(raw.heard, raw.events)) for raw in found], sys.stdout)


if __name__ == "__main__":
    main()
