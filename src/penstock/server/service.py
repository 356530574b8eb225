"""Between the web and the scheduler: requests become asynchronous streams of what happens to them."""

import asyncio
import time
import uuid
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from penstock.chat.events import Done, Event
from penstock.chat.messages import Conversation
from penstock.chat.parse import Parser
from penstock.chat.render import render
from penstock.chat.token_parser import TokenParser
from penstock.engine.engine import Engine
from penstock.engine.sampling import Sampling
from penstock.engine.scheduler import Failed, Reading, Request, Scheduler, Update
from penstock.engine.steps import Step
from penstock.server.settings import Settings


def new_id(prefix: str) -> str:
    """Unguessable."""
    return f"{prefix}{uuid.uuid4().hex}"


@dataclass(slots=True)
class Usage:
    """Counted while a request runs."""

    prompt: int = 0
    cached: int = 0
    completion: int = 0
    reasoning: int = 0
    begun: float = field(default_factory=time.monotonic)
    first: float | None = None  # when the first token was there
    ended: float | None = None


@dataclass(slots=True)
class Token:
    """One sampled token and what it means for the conversation."""

    step: Step
    events: list[Event]


class Service:
    """One engine for all clients."""

    def __init__(self, engine: Engine, settings: Settings, scheduler: Scheduler | None = None):
        self.engine, self.settings = engine, settings
        self.scheduler = scheduler or Scheduler(engine, settings.parallel, settings.queue)
        self.created = int(time.time())

    def start(self) -> None:
        self.scheduler.start()

    def stop(self, deadline: float = 5.0) -> None:
        self.scheduler.stop(deadline)
        self.engine.close()

    async def complete(
        self, prompt: Sequence[int], max_tokens: int, sampling: Sampling, usage: Usage
    ) -> AsyncGenerator[Reading | Step, None]:
        """What happens to a prompt.  Raises what is wrong with it at the first `anext`; closing the iterator, as a
        client that goes away does, ends the request before its next step."""
        loop = asyncio.get_running_loop()
        updates: asyncio.Queue[Update] = asyncio.Queue()

        def tell(update: Update) -> None:
            with suppress(RuntimeError):  # the loop is closed: nobody listens any more
                loop.call_soon_threadsafe(updates.put_nowait, update)

        request = Request(list(prompt), min(max_tokens, self.settings.max_tokens), sampling, tell)
        usage.prompt = len(prompt)
        self.scheduler.submit(request)
        try:
            while True:
                update = await updates.get()
                match update:
                    case Failed(error):
                        raise error
                    case Reading():
                        usage.cached = update.cached
                        yield update
                    case Step():
                        usage.first = usage.first or time.monotonic()
                        usage.completion += 1
                        yield update
                        if update.finish_reason is not None:
                            return
        finally:
            request.cancel()
            usage.ended = time.monotonic()

    async def chat(
        self, conversation: Conversation, max_tokens: int, sampling: Sampling, usage: Usage, **rendering: bool
    ) -> AsyncGenerator[Reading | Token, None]:
        """An assistant's turn, token by token; the last one's events end with `Done`.  rendering: see `render`."""
        tokenizer = self.engine.tokenizer
        prompt = render(conversation, **rendering)
        # Stop strings end an answer.  In reasoning and tool calls they mean nothing, so they are for the parser.
        words = Parser(
            thinking=prompt.thinking,
            tools=bool(conversation.tools),
            stop=sampling.stop,
            forced=rendering.get("force_call", False),
            continuing=rendering.get("continue_final", False),
        )
        parser = TokenParser(tokenizer, words)
        stream = self.complete(prompt.ids(tokenizer), max_tokens, replace(sampling, stop=()), usage)
        try:
            async for update in stream:
                if isinstance(update, Reading):
                    yield update
                    continue
                events = parser.push(update.token)
                if update.finish_reason is not None or parser.finished:
                    reason = "stop" if parser.finished else update.finish_reason or "stop"
                    events += parser.finish(reason)
                yield Token(update, events)
                if events and isinstance(events[-1], Done):
                    return
        finally:
            await stream.aclose()
