"""A server among enemies: ordinary streams and hostile requests at the same time, in a memory group of its budget.

    python -m benchmarks.hostile --seconds 120 --memory 600MiB

Prints how long /health took (and how late a process is here that does nothing), how the honest streams fared (each
must be, to the letter, the answer that it was alone; none may be refused), what the enemies were told, and the
process's size over time.  Exits 1 if a stream was wrong or refused, the server was killed, or /health was not always
answered.
"""

import argparse
import asyncio
import json
import statistics
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext, suppress
from typing import Any, Final

import httpx

from benchmarks.cgroup import MemoryGroup, NoMemoryGroups
from benchmarks.served import Served
from penstock.sizes import parse_size, write_size

MIB: Final = 1 << 20
JSON: Final = {"content-type": "application/json"}
QUESTIONS: Final = (
    "What is the capital of France?",
    "Count from one to ten.",
    "Say something about the sea.",
)


def wide_schema(number: int) -> dict[str, Any]:
    properties = {f"p{number}_{each}": {"type": "string"} for each in range(3000)}
    return {"type": "object", "properties": properties}


def many_shapes(number: int) -> dict[str, Any]:
    """Small enough to be read, and as costly to compile as that can be."""
    return {"anyOf": [{"type": "object", "properties": {f"p{number}_{shape}{each}": {} for each in range(10)}}
                      for shape in range(30)]}  # fmt: skip


def attacks() -> list[Callable[[int], tuple[str, bytes]]]:
    """What an enemy sends: path and body."""

    def body(path: str, make: Callable[[int], Any]) -> Callable[[int], tuple[str, bytes]]:
        return lambda number: (path, json.dumps(make(number)).encode())

    def said(text: str) -> list[dict[str, str]]:
        return [{"role": "user", "content": text}]

    chat, messages, completions = "/v1/chat/completions", "/v1/messages", "/v1/completions"
    return [
        body(messages, lambda _: {"messages": said("a"), "max_tokens": 9, "stop_sequences": ["stop"] * 1_000_000}),
        body(chat, lambda _: {"messages": said("word " * 2_000_000), "max_tokens": 9}),
        body(chat, lambda _: {"messages": said("word " * 300_000), "max_tokens": 9}),
        body(completions, lambda _: {"prompt": "a" * 1_500_000, "max_tokens": 9}),
        body(completions, lambda _: {"prompt": ["a"] * 200_000, "max_tokens": 1}),
        body("/tokenize", lambda _: {"content": "some text " * 150_000, "with_pieces": True}),
        body(messages + "/count_tokens", lambda _: {"messages": said("x y " * 400_000)}),
        body(chat, lambda n: {"messages": said("a"), "max_tokens": 4, "response_format": {
            "type": "json_schema", "json_schema": {"name": "a", "schema": wide_schema(n)}}}),
        body(chat, lambda _: {"messages": said("a"), "max_tokens": 4, "response_format": {
            "type": "json_schema", "json_schema": {"name": "a", "schema": {"enum": ["x" * 9] * 100_000}}}}),
        body(chat, lambda n: {"messages": said("a"), "max_tokens": 4, "response_format": {
            "type": "json_schema", "json_schema": {"name": "a", "schema": many_shapes(n)}}}),
        body("/v1/responses/input_tokens", lambda _: {"input": "x y " * 400_000}),
        body("/api/chat", lambda _: {"model": "deepseek-v4", "messages": said("word " * 300_000)}),
        body("/infill", lambda _: {"input_prefix": "a b " * 200_000, "input_suffix": "c d " * 200_000}),
        body("/dashboard/markdown", lambda _: {"text": "[*`_" * 16_000}),
        body("/tokenize", lambda _: {"content": "~" * 1_900_000}),
        body("/tokenize", lambda _: {"content": "🙂\n" * 300_000, "with_pieces": True}),
        body(chat, lambda _: {"messages": [[] for _ in range(600_000)]}),
        body("/dashboard/markdown", lambda n: {"text": f"{n}\n```python\n" + "\n " * 30_000}),
        body("/dashboard/markdown", lambda n: {"text": f"|{n}" + "|a" * 999 + "\n" + "|-" * 1000 + "\n|b" * 20_000}),
        lambda _: (chat, b'{"messages": ' + b"[" * 1_500_000),
        lambda _: (chat, b"\xff" * (2 * MIB)),
    ]  # fmt: skip


class Siege:
    """Everything that happens to one server."""

    def __init__(self, url: str, seconds: float):
        self.url, self.end = url, time.monotonic() + seconds
        self.health: list[float] = []
        self.unanswered = self.right = self.wrong = 0
        self.refused: Counter[str] = Counter()
        self.told: Counter[str] = Counter()
        self.expected: dict[str, str] = {}

    async def run(self, rss: Callable[[], int]) -> list[tuple[float, int]]:
        limits = httpx.Limits(max_connections=None)
        sizes: list[tuple[float, int]] = []
        async with httpx.AsyncClient(base_url=self.url, timeout=120, limits=limits) as client:
            for question in QUESTIONS:
                self.expected[question] = await self._stream(client, question)
            begin = time.monotonic()
            tasks = [self._repeat(self._watch, client), *(self._repeat(self._ask, client) for _ in range(3))]

            async def measure(_: httpx.AsyncClient) -> None:
                sizes.append((time.monotonic() - begin, rss()))
                await asyncio.sleep(1)

            await asyncio.gather(*tasks, self._repeat(measure, client))
        return sizes

    async def attack(self) -> "Counter[str]":
        """The enemies' part: what they were told."""
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=self.url, timeout=120, limits=limits) as client:
            tasks = [self._repeat(self._attack(made), client) for made in attacks()]
            await asyncio.gather(
                *tasks, self._repeat(self._park, client), self._repeat(self._half_open, client)
            )
        return self.told

    async def _repeat(
        self, act: Callable[[httpx.AsyncClient], Awaitable[None]], client: httpx.AsyncClient
    ) -> None:
        while time.monotonic() < self.end:
            await act(client)

    async def _watch(self, _: httpx.AsyncClient) -> None:
        """On a connection of its own, as a probe has."""
        begin = time.perf_counter()
        try:
            reader, writer = await asyncio.open_connection(*self._place())
            writer.write(b"GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
            answer = await asyncio.wait_for(reader.read(), 60)
            writer.close()
            self.unanswered += b" 200 " not in answer[:20]
        except (OSError, TimeoutError):
            self.unanswered += 1
        self.health.append(time.perf_counter() - begin)
        await asyncio.sleep(0.05)

    async def _ask(self, client: httpx.AsyncClient) -> None:
        question = QUESTIONS[len(self.health) % len(QUESTIONS)]
        try:
            answer = await self._stream(client, question)
        except (httpx.HTTPError, RuntimeError) as error:
            self.refused[f"{type(error).__name__}: {error}"[:100]] += 1
            return
        self.right += answer == self.expected[question]
        self.wrong += answer != self.expected[question]

    async def _stream(self, client: httpx.AsyncClient, question: str) -> str:
        message = {"role": "user", "content": question}
        body = {"messages": [message], "max_tokens": 40, "temperature": 0, "stream": True}
        text = ""
        async with client.stream("POST", "/v1/chat/completions", json=body) as reply:
            if reply.status_code != 200:
                raise RuntimeError(f"{reply.status_code} {(await reply.aread()).decode()}")
            async for line in reply.aiter_lines():
                if line.startswith("data: {"):
                    event = json.loads(line[6:])
                    if "error" in event:
                        raise RuntimeError(str(event["error"]))
                    text += "".join(each["delta"].get("content") or "" for each in event["choices"])
        return text

    def _attack(
        self, made: Callable[[int], tuple[str, bytes]]
    ) -> Callable[[httpx.AsyncClient], Awaitable[None]]:
        path, body = made(0)
        mark = body.rfind(b"p0_")  # a schema differs each time, so that no compiled grammar is found again
        number = 0

        async def attack(client: httpx.AsyncClient) -> None:
            nonlocal body, number
            number += 1
            if mark >= 0:
                body = body[:mark] + f"q{number}".encode() + body[body.index(b'"', mark) :]
            try:
                reply = await client.post(path, content=body, headers=JSON)
                self.told[f"{path} {reply.status_code}"] += 1
            except httpx.HTTPError as error:
                self.told[f"{path} {type(error).__name__}"] += 1
            await asyncio.sleep(0.2)

        return attack

    async def _park(self, client: httpx.AsyncClient) -> None:
        """Many at once; the weights come back by themselves."""
        asked = [client.post("/props", json={"parked": False}) for _ in range(60)]
        for reply in await asyncio.gather(*asked, return_exceptions=True):
            self.told[f"/props {getattr(reply, 'status_code', type(reply).__name__)}"] += 1
        await asyncio.sleep(1)

    async def _half_open(self, _: httpx.AsyncClient) -> None:
        """A head that does not end."""
        opened = []
        with suppress(OSError):
            for _each in range(100):
                _reader, writer = await asyncio.open_connection(*self._place())
                writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: loc")
                opened.append(writer)
            await asyncio.sleep(2)
        for writer in opened:
            writer.close()

    def _place(self) -> tuple[str, int]:
        host, _, port = self.url.removeprefix("http://").rpartition(":")
        return host, int(port)


def lateness(seconds: float) -> list[float]:
    """How late a process is that only sleeps and wakes: what the machine itself adds to every latency."""
    end, found = time.monotonic() + seconds, []
    while time.monotonic() < end:
        begin = time.perf_counter()
        time.sleep(0.02)
        found.append(time.perf_counter() - begin - 0.02)
    return sorted(found)


def besiege(url: str, seconds: float) -> Counter[str]:
    """In a process of its own."""
    return asyncio.run(Siege(url, seconds).attack())


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--memory", default="600MiB", help="the server's budget, and its group's limit")
    parser.add_argument("--model", help="the pocket model if none is named")
    given = parser.parse_args(arguments)
    budget = parse_size(given.memory, "--memory")
    try:
        held: Any = MemoryGroup(budget)
    except NoMemoryGroups as error:
        print(f"without a memory group: {error}")
        held = nullcontext()
    with held as group:
        model = ["-m", given.model] if given.model else []
        server = Served(*model, "--memory", given.memory, "--log-level", "error", group=group)
        siege = Siege(server.url, given.seconds)
        try:
            with ProcessPoolExecutor(2) as others:  # apart from those who measure
                told = others.submit(besiege, server.url, given.seconds)
                sleeper = others.submit(lateness, given.seconds)
                sizes = asyncio.run(siege.run(server.rss))
                siege.told, late = told.result(), sleeper.result()
            alive = siege.unanswered == 0
        finally:
            peak = group.peak if group is not None else None
            killed = group.killed if group is not None else 0
            server.kill()
    health = sorted(siege.health)
    print(f"/health: {len(health)} asked, p50 {1000 * statistics.median(health):.1f} ms, "
          f"p99 {1000 * health[int(0.99 * (len(health) - 1))]:.1f} ms, worst {1000 * health[-1]:.1f} ms, "
          f"{siege.unanswered} not answered")  # fmt: skip
    print(f"beside it a process that only sleeps and wakes was late by p50 {1000 * statistics.median(late):.1f} ms, "
          f"p99 {1000 * late[int(0.99 * (len(late) - 1))]:.1f} ms, worst {1000 * late[-1]:.1f} ms")  # fmt: skip
    print(f"honest streams: {siege.right} right, {siege.wrong} wrong, {siege.refused.total()} refused")
    for why, count in siege.refused.most_common(5):
        print(f"  {count} × {why}")
    print("enemies were told:", ", ".join(f"{what} × {count}" for what, count in sorted(siege.told.items())))
    step = max(1, len(sizes) // 12)
    print("resident MiB at second:", ", ".join(f"{at:.0f}: {size / MIB:.0f}" for at, size in sizes[::step]))
    if peak is not None:
        print(f"group: peak {write_size(peak)} of {given.memory}, {killed} killed")
    return int(bool(siege.wrong or siege.refused.total() or killed or not alive))


if __name__ == "__main__":
    sys.exit(main())
