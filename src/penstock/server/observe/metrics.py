"""/metrics: what has been asked, and how long it took, counted as it happens.

Everything else is read on each scrape (`state_series`).
"""

import time
from collections.abc import Sequence
from typing import Annotated, Final

from fastapi import APIRouter, FastAPI, Header, Request
from fastapi.responses import Response
from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.exposition import choose_encoder
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from penstock.engine.progress import PrefillProgress
from penstock.engine.requests import Failed, Update
from penstock.engine.steps import Step
from penstock.server.http.errors import ApiError, kind_of
from penstock.server.http.request_context import CLIENT_LEFT, current_request
from penstock.server.observe.state_series import StateSeries, Totals
from penstock.server.service import Follower, Service
from penstock.server.usage import Usage

SECONDS: Final = (0.01, 0.03, 0.1, 0.3, 1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600)

router = APIRouter()


@router.get("/metrics", include_in_schema=False)
async def scrape(request: Request, accept: Annotated[str, Header()] = "") -> Response:
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
    service.observers.append(metrics.follow)


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
            "penstock_errors", "Requests that failed or were refused.", ("kind",), registry=self.registry
        )
        self.lookups = Counter(
            "penstock_kv_lookups",
            "Prompts, by where their beginning was found (memory, disk, none), and if nowhere, why not.",
            ("source", "reason"),
            registry=self.registry,
        )
        self.registry.register(StateSeries(service, self.totals))

    def follow(self, _: Sequence[int], __: Usage) -> Follower:
        """For each prompt that comes."""
        return _Count(self).add


class _Count:
    """One prompt on its way: adds to the totals as it goes, so that long work shows while it lasts."""

    def __init__(self, metrics: Metrics) -> None:
        self.metrics = metrics
        self.begun = time.monotonic()
        self.seen = 0.0  # when the last update came; 0: none has
        self.read = self.length = 0  # tokens of the prompt, tokens in all
        self.generating = False

    def add(self, update: Update) -> None:
        if isinstance(update, Failed):
            self._fail(update.error)
            return
        now, totals = time.monotonic(), self.metrics.totals
        passed = now - self.seen if self.seen else 0.0
        if self.generating:
            totals.decode_seconds += passed
        else:
            totals.prompt_seconds += passed
        if isinstance(update, PrefillProgress):
            if not self.seen:
                self.metrics.lookups.labels(update.source, update.reason).inc()
                totals.cached += update.cached
                self.read = update.cached
            read = max(update.done, self.read)  # a step that failed on its way is begun again
            totals.read += read - self.read
            self.read = self.length = read
        elif isinstance(update, Step):
            totals.generated += 1
            self.length += 1
            if not self.generating:
                self.generating = True
                self.metrics.first_token.observe(now - self.begun)
        totals.longest = max(totals.longest, self.length)
        self.seen = now

    def _fail(self, error: BaseException) -> None:
        self.metrics.errors.labels(kind_of(error)).inc()
        context = current_request()
        if context is not None:
            context.failed = True


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
            context = current_request()
            if status >= 400 and status != CLIENT_LEFT and not (context and context.failed):
                self.metrics.errors.labels((context and context.error) or "internal_error").inc()
            self.metrics.duration.labels(endpoint).observe(time.monotonic() - begun)
