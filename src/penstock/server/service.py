"""Between the web and the scheduler: requests become asynchronous streams of what happens to them."""

import asyncio
import math
import time
import uuid
from collections import Counter, deque
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing, suppress
from functools import cached_property, partial
from typing import Any, Final, NamedTuple, TypeVar

from fastapi import Request as HttpRequest

from penstock.chat.driver import ChatDriver, Reply, Token, format_of
from penstock.chat.messages import Conversation
from penstock.chat.replay import LruStore, Replay
from penstock.engine.constraint import Constraint
from penstock.engine.disk_sessions import DiskSessions
from penstock.engine.engine import Engine
from penstock.engine.prefix_cache import PrefixCache
from penstock.engine.progress import PrefillProgress
from penstock.engine.requests import Failed, Request, Scored, Update
from penstock.engine.sampling import Sampling
from penstock.engine.scheduler import Scheduler
from penstock.engine.steps import Step
from penstock.server.api.responses.store import SHARE, ResponseStore
from penstock.server.http.errors import ApiError
from penstock.server.http.keys import Charge, Keys
from penstock.server.http.request_context import current_request
from penstock.server.http.settings import Settings
from penstock.server.http.work import UNBROKEN, Workers, kept_grammars, largest_body
from penstock.server.prefill_speed import PrefillSpeed
from penstock.server.usage import Usage

T = TypeVar("T")
PIN_S: Final = 30.0  # for which system prompts are pinned after somebody has asked for it


def service_of(request: HttpRequest) -> "Service":
    """The service that a request came to."""
    found: Service = request.app.state.service
    return found


def new_id(prefix: str) -> str:
    """Unguessable."""
    return f"{prefix}{uuid.uuid4().hex}"


# Told of a prompt when it comes; what it returns is told what happens to it, `Failed` also if it is refused.
Follower = Callable[[Update], None]
Observer = Callable[[Sequence[int], Usage], Follower]


class ModelSize(NamedTuple):
    """kind: the type that most of its bytes have."""

    parameters: int
    bytes: int
    kind: str


class Service:
    """One engine for all clients."""

    def __init__(self, engine: Engine, settings: Settings, scheduler: Scheduler | None = None):
        self.engine, self.settings = engine, settings
        folder = settings.kv_dir
        if scheduler is None:
            disk = None if folder is None else DiskSessions(engine, folder, settings.kv_space)
            cache = PrefixCache(engine, disk=disk)
            scheduler = Scheduler(engine, settings.parallel, settings.queue, cache, settings.park_after)
        self.scheduler = scheduler
        store = LruStore(None if folder is None else folder / "said.sqlite")
        format = format_of(engine)
        replay = Replay(format, engine.fingerprint, engine.config.vocab_size, store)
        self.responses = self._response_store()
        reserved = engine.options.request_bytes
        self.max_body = settings.max_body or largest_body(engine.context, reserved)
        self.driver = ChatDriver(engine, replay, format, kept_grammars(self.max_body))
        self.work = Workers(self.max_body)
        engine.tokenizer.longest_unbroken = UNBROKEN
        self.created = int(time.time())
        self.keys = Keys(settings.api_keys, settings.api_key_file)
        self.observers: list[Observer] = []
        self._last_dispatch: LoopDispatch | None = None
        self.prefill_speed = PrefillSpeed(engine, lambda: scheduler.loop.prefill_per_second)
        self._pin = ("", 0.0)  # label, and until when
        self.pins = 0  # prompts that came to be pinned

    def _response_store(self) -> ResponseStore:
        """Responses are kept where sessions are, within a share of their space."""
        cache, folder = self.scheduler.prefix_cache, self.settings.kv_dir
        if folder is not None and cache.disk is not None:
            file, room = folder / "responses.sqlite", cache.disk.store.make_room
            return ResponseStore(file, self.settings.kv_space // SHARE, make_room=room)
        return ResponseStore(None, cache.budget // SHARE, tell=partial(setattr, cache, "others"))

    @cached_property
    def model_size(self) -> ModelSize:
        tensors = self.engine.checkpoint.index.values()
        parameters = sum(math.prod(tensor.shape) for tensor in tensors)
        kinds = Counter[str]()
        for tensor in tensors:
            kinds[tensor.kind.name] += tensor.total_bytes
        return ModelSize(parameters, kinds.total(), kinds.most_common(1)[0][0])

    def pin(self, label: str) -> None:
        """System prompts that come within the next half minute are pinned under this label."""
        self._pin = (label, time.monotonic() + PIN_S)

    @property
    def state(self) -> str:
        """ "loading" until the weights have been read for the first time, then "ready", "parked" or "waking"; or
        "failed"."""
        if self.scheduler.failure is not None:
            return "failed"
        if not self.scheduler.ready:
            return "loading"
        if self.engine.parked:
            return "waking" if self.engine.loading is not None else "parked"
        return "ready"

    def start(self) -> None:
        self.scheduler.start()

    def stop(self, deadline: float = 5.0) -> None:
        """Lets answers go on for so many seconds, then ends; sessions are saved, if there is a folder for them."""
        self.scheduler.stop(deadline)
        if self.scheduler.ready:
            self.prefill_speed.save()
            cache = self.scheduler.prefix_cache
            if cache.disk is not None:
                if self.scheduler.failure is None:  # sessions are lost with their device
                    cache.save()
                cache.disk.close()
            self.responses.close()
            self.engine.close()

    def reply(self, conversation: Conversation, sampling: Sampling, **rendering: bool) -> Reply:
        """An assistant's turn.  Takes as long as the conversation is: not for the event loop."""
        return self.driver.reply(conversation, sampling, most=self.engine.context - 1, **rendering)

    async def complete(
        self,
        prompt: Sequence[int],
        max_tokens: int,
        sampling: Sampling,
        usage: Usage,
        shared: int = 0,
        stable: int | None = None,
        constraint: Constraint | None = None,
        score: int | None = None,
    ) -> AsyncGenerator[PrefillProgress | Scored | Step, None]:
        """What happens to a prompt.  Raises what is wrong with it at the first `anext`; closing the iterator, as a
        client that goes away does, ends the request before its next step.  shared, stable, constraint, score: see
        `Request`."""
        updates: asyncio.Queue[tuple[Update, float]] = asyncio.Queue()
        send = self._dispatch().send

        def tell(update: Update) -> None:
            """On the scheduler's thread: when something happened is known there, not where it is heard of."""
            send(updates.put_nowait, (update, time.monotonic()))

        limit = min(max_tokens, self.settings.max_tokens)
        label, until = self._pin
        pin = label if shared and time.monotonic() < until else ""
        self.pins += bool(pin)
        context = current_request()
        client = "" if context is None else context.client
        request = Request(list(prompt), limit, sampling, tell, shared, stable, constraint, score, pin, client)
        usage.prompt = len(prompt)
        followers = [observe(prompt, usage) for observe in self.observers]
        if context is not None and context.key is not None:
            followers.append(Charge(context.key).add)
        timer = self._timer(usage, tell)
        try:
            if self.scheduler.prefix_cache.disk is not None and score is None:
                await asyncio.to_thread(self.scheduler.prefix_cache.fetch, request.prompt)
            self.scheduler.submit(request)
            while True:
                update, when = await updates.get()
                for follow in followers if not isinstance(update, Failed) else ():
                    follow(update)
                match update:
                    case Failed(error):
                        raise error
                    case PrefillProgress():
                        usage.cached, usage.prefill = update.cached, update
                        yield update
                    case Scored():
                        yield update
                        if update.last:
                            return
                    case Step():
                        usage.first, usage.last, usage.prefill = usage.first or when, when, None
                        usage.completion += 1
                        usage.drafted, usage.accepted = request.drafted, request.accepted
                        yield update
                        if update.finish_reason is not None:
                            return
        except Exception as error:
            for follow in followers:
                follow(Failed(error))
            raise
        finally:
            if timer is not None:
                timer.cancel()
            request.cancel()
            usage.ended = time.monotonic()

    def _dispatch(self) -> "LoopDispatch":
        """The way to the loop that runs now."""
        loop = asyncio.get_running_loop()
        if self._last_dispatch is None or self._last_dispatch.loop is not loop:
            self._last_dispatch = LoopDispatch(loop)
        return self._last_dispatch

    def _timer(self, usage: Usage, tell: Follower) -> asyncio.TimerHandle | None:
        """Ends a request that takes longer than one may."""
        loop, timeout = asyncio.get_running_loop(), self.settings.timeout
        if not timeout:
            return None
        error = ApiError(504, f"the request took more than {timeout:g} seconds", code="timeout")
        return loop.call_later(usage.begun + timeout - time.monotonic(), tell, Failed(error))

    async def run(
        self, reply: Reply, max_tokens: int, usage: Usage
    ) -> AsyncGenerator[PrefillProgress | Token, None]:
        """An assistant's turn, token by token; the last one's events end with `Done`."""
        constraint = await self.work.run_costly(reply.constraint) if reply.constrained else None
        ids, shared, stable, _ = reply.prompt
        stream = self.complete(ids, max_tokens, reply.sampling, usage, shared, stable, constraint)
        async with aclosing(stream):
            async for update in stream:
                if isinstance(update, Step):
                    token = reply.push(update)
                    usage.reasoning += token.reasoning
                    yield token
                    if reply.finished:
                        return
                elif isinstance(update, PrefillProgress):
                    yield update


class LoopDispatch:
    """Calls functions on an event loop for another thread, many at a time: a step has something for every request,
    and waking the loop for each of them would cost more than the step's own work around the model."""

    def __init__(self, loop: asyncio.AbstractEventLoop):
        self.loop = loop
        self._calls: deque[tuple[Callable[[Any], None], Any]] = deque()
        self._scheduled = False

    def send(self, function: Callable[[T], None], update: T) -> None:
        """From any thread."""
        self._calls.append((function, update))
        if not self._scheduled:
            self._scheduled = True
            with suppress(RuntimeError):  # the loop is closed: nobody listens any more
                self.loop.call_soon_threadsafe(self._run)

    def _run(self) -> None:
        # First: what is sent from now on wakes the loop again, what was sent before is here.
        self._scheduled = False
        while self._calls:
            function, update = self._calls.popleft()
            function(update)
