"""/metrics: what has been asked, how long it took, and what the weights' storage did for it.

Events are counted as they happen; everything else is read from the scheduler and the engine on each scrape.
"""

import time
from collections.abc import AsyncGenerator, Callable
from functools import wraps
from typing import Annotated, Final, ParamSpec

from fastapi import APIRouter, FastAPI, Header, Request
from fastapi.responses import Response
from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.exposition import choose_encoder
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from penstock.engine.scheduler import Reading
from penstock.engine.steps import Step
from penstock.errors import PenstockError
from penstock.server.errors import ApiError, api_error
from penstock.server.service import Service
from penstock.server.state_series import StateSeries, Totals

SECONDS: Final = (0.01, 0.03, 0.1, 0.3, 1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600)
CLIENT_LEFT: Final = 499  # the status that web servers note for whoever did not wait for an answer

P = ParamSpec("P")
Stream = AsyncGenerator[Reading | Step, None]

router = APIRouter()


@router.get("/metrics", include_in_schema=False)
def scrape(request: Request, accept: Annotated[str, Header()] = "") -> Response:
    metrics: Metrics | None = getattr(request.app.state, "metrics", None)
    if metrics is None:
        raise ApiError(404, "metrics are off", code="not_found")
    encode, kind = choose_encoder(accept)
    return Response(encode(metrics.registry), media_type=kind)


def attach(app: FastAPI, service: Service) -> None:
    """Counts what comes to the application from now on, unless the settings say otherwise."""
    if not service.settings.metrics:
        return
    app.state.metrics = metrics = Metrics(service)
    app.add_middleware(CountRequests, metrics=metrics)
    service.complete = metrics.observing(service.complete)  # type: ignore[method-assign]


class Metrics:
    """The series of one application."""

    def __init__(self, service: Service) -> None:
        self.registry = CollectorRegistry()
        self.totals = Totals()
        self.requests = Counter(
            "penstock_requests", "HTTP requests.", ("endpoint", "status"), registry=self.registry
        )
        self.duration = Histogram(
            "penstock_request_duration_seconds",
            "From a request's arrival to the end of its answer.",
            ("endpoint",),
            buckets=SECONDS,
            registry=self.registry,
        )
        self.first_token = Histogram(
            "penstock_time_to_first_token_seconds",
            "From a prompt's arrival to its first token, waiting included.",
            buckets=SECONDS,
            registry=self.registry,
        )
        self.errors = Counter(
            "penstock_errors", "Generations that failed or were refused.", ("kind",), registry=self.registry
        )
        self.registry.register(StateSeries(service, self.totals))

    def observing(self, complete: Callable[P, Stream]) -> Callable[P, Stream]:
        """The same stream, counted."""

        @wraps(complete)
        async def observed(*args: P.args, **kwargs: P.kwargs) -> Stream:
            stream, count = complete(*args, **kwargs), _Count(self)
            try:
                async for update in stream:
                    count.add(update)
                    yield update
            except PenstockError as error:
                self.errors.labels(api_error(error).code).inc()
                raise
            except Exception:
                self.errors.labels("internal").inc()
                raise
            finally:
                await stream.aclose()

        return observed


class _Count:
    """One prompt on its way: adds to the totals as it goes, so that long work shows while it lasts."""

    def __init__(self, metrics: Metrics) -> None:
        self.metrics = metrics
        self.begun = time.monotonic()
        self.seen = 0.0  # when the last update came; 0: none has
        self.read = self.length = 0  # tokens of the prompt, tokens in all
        self.generating = False

    def add(self, update: Reading | Step) -> None:
        now, totals = time.monotonic(), self.metrics.totals
        passed = now - self.seen if self.seen else 0.0
        if self.generating:
            totals.decode_seconds += passed
        else:
            totals.prompt_seconds += passed
        if isinstance(update, Reading):
            if not self.seen:
                totals.cached += update.cached
                self.read = update.cached
            totals.read += update.done - self.read
            self.read = self.length = update.done
        else:
            totals.generated += 1
            self.length += 1
            if not self.generating:
                self.generating = True
                self.metrics.first_token.observe(now - self.begun)
        totals.longest = max(totals.longest, self.length)
        self.seen = now


class CountRequests:
    """Counts what passes, streams until their end."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self.app, self.metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        begun, status = time.monotonic(), CLIENT_LEFT

        async def note(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self.app(scope, receive, note)
        except Exception:
            status = 500
            raise
        finally:
            # The route's pattern, so that clients cannot make series by asking for paths that do not exist.
            endpoint = getattr(scope.get("route"), "path", "other")
            self.metrics.requests.labels(endpoint, str(status)).inc()
            self.metrics.duration.labels(endpoint).observe(time.monotonic() - begun)
