"""/metrics: what has been asked, how long it took, and what the weights' storage did for it.

Events are counted as they happen; everything else is read from the scheduler and the engine on each scrape.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final

from fastapi import APIRouter, FastAPI, Header, Request
from fastapi.responses import Response
from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from penstock.engine.progress import PrefillProgress
from penstock.engine.requests import Failed, Update
from penstock.engine.steps import Step
from penstock.machine.memory import resident_bytes
from penstock.server.http.errors import ApiError, kind_of
from penstock.server.http.keys import LIMITS
from penstock.server.http.request_context import CLIENT_LEFT, current_request
from penstock.server.observe.draft_series import draft_series
from penstock.server.observe.machines import machine_series
from penstock.server.observe.storage_series import storage_series
from penstock.server.service import Follower, Service
from penstock.server.usage import Usage

SECONDS: Final = (0.01, 0.03, 0.1, 0.3, 1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600)

router = APIRouter()


@dataclass(slots=True)
class Totals:
    """Of all prompts since the application was made; seconds are summed over requests, also simultaneous ones."""

    read: int = 0
    cached: int = 0
    generated: int = 0
    prompt_seconds: float = 0.0  # from when a prompt's turn came to its first token
    decode_seconds: float = 0.0  # from the first token to the last
    longest: int = 0  # prompt and answer together


STATES: Final = ("loading", "ready", "parked", "waking", "failed")


class StateSeries(Collector):
    """Reads only; nobody waits for a scrape."""

    def __init__(self, service: Service, totals: Totals) -> None:
        self.service, self.totals = service, totals

    def collect(self) -> Iterator[Metric]:
        state = GaugeMetricFamily(
            "penstock_state", "1 for the state that the model is in.", labels=("state",)
        )
        for name in STATES:
            state.add_metric((name,), name == self.service.state)
        yield state
        yield from self._requests()
        yield from storage_series(self.service.engine.stats())
        yield from self._as_llamacpp()
        yield from self._memory()
        yield from self._keys()
        yield from self._device(self.service.engine.stats().get("device"))
        yield from machine_series(self.service.engine.stats().get("cluster"))
        yield from draft_series(self.service.engine.stats().get("draft"))

    def _device(self, stats: dict[str, Any] | None) -> Iterator[Metric]:
        """How a GPU's steps were launched; its memory is a tier."""
        if stats is None:
            return
        steps = CounterMetricFamily(
            "penstock_gpu_steps", "Steps, by whether a recorded graph was repeated.", labels=("how",)
        )
        steps.add_metric(("repeated",), stats["steps_repeated"])
        steps.add_metric(("launched",), stats["steps_launched"])
        yield steps

    def _memory(self) -> Iterator[Metric]:
        """What each tier holds and what it may hold: the same numbers that the page shows."""
        used = GaugeMetricFamily("penstock_memory_bytes", "Bytes that a tier holds.", labels=("tier",))
        limit = GaugeMetricFamily("penstock_memory_limit_bytes", "Bytes that it may hold.", labels=("tier",))
        for tier, amounts in memory_by_tier(self.service, self.service.engine.stats()).items():
            used.add_metric((tier,), amounts["used"])
            limit.add_metric((tier,), amounts["limit"])
        yield used
        yield limit
        if (resident := resident_bytes()) is not None:
            yield GaugeMetricFamily("penstock_resident_bytes", "Bytes that the process really has.", resident)
        if (budget := self.service.engine.plan.budget) is not None:
            yield GaugeMetricFamily("penstock_budget_bytes", "Bytes that it may have.", budget)

    def _keys(self) -> Iterator[Metric]:
        """By the names of keys, never by the keys."""
        keys = self.service.keys.all
        if not keys:
            return
        requests = CounterMetricFamily(
            "penstock_key_requests",
            "Requests with a key, and those beyond its limits.",
            labels=("key", "outcome"),
        )
        tokens = CounterMetricFamily(
            "penstock_key_tokens", "Tokens read and written for a key.", labels=("key", "kind")
        )
        active = GaugeMetricFamily(
            "penstock_key_active_requests", "Requests with a key that are being answered.", labels=("key",)
        )
        limits = GaugeMetricFamily("penstock_key_limit", "What a key may use.", labels=("key", "of"))
        for key in keys:
            requests.add_metric((key.name, "answered"), key.requests)
            requests.add_metric((key.name, "refused"), key.refused)
            tokens.add_metric((key.name, "read"), key.read)
            tokens.add_metric((key.name, "generated"), key.generated)
            active.add_metric((key.name,), key.active)
            for of in LIMITS:
                if (limit := getattr(key, of)) is not None:
                    limits.add_metric((key.name, of), limit)
        yield from (requests, tokens, active, limits)

    def _requests(self) -> Iterator[Metric]:
        scheduler, totals = self.service.scheduler, self.totals
        prompt = CounterMetricFamily("penstock_prompt_tokens", "Tokens of prompts.", labels=("source",))
        prompt.add_metric(("read",), totals.read)
        prompt.add_metric(("cached",), totals.cached)
        yield prompt
        yield CounterMetricFamily("penstock_generated_tokens", "Tokens of answers.", totals.generated)
        yield GaugeMetricFamily("penstock_active_requests", "Requests being answered.", scheduler.active)
        yield GaugeMetricFamily("penstock_waiting_requests", "Requests waiting.", scheduler.waiting)
        yield CounterMetricFamily("penstock_steps", "Steps of the model.", scheduler.loop.steps)
        yield CounterMetricFamily(
            "penstock_batch_rows",
            "Requests that took part in a step, summed over steps.",
            scheduler.loop.busy_rows,
        )
        yield CounterMetricFamily(
            "penstock_paused_requests",
            "Times that a request had to step back for memory.",
            scheduler.loop.paused,
        )
        yield CounterMetricFamily(
            "penstock_engine_seconds", "Time spent in steps of the model.", scheduler.loop.engine_seconds
        )
        yield GaugeMetricFamily(
            "penstock_session_pool_bytes", "State of idle sessions.", scheduler.prefix_cache.bytes
        )
        yield GaugeMetricFamily(
            "penstock_session_pool_sessions", "Idle sessions.", len(scheduler.prefix_cache)
        )

    def _as_llamacpp(self) -> Iterator[Metric]:
        """The same under llama.cpp's names, for dashboards that know those."""
        scheduler, totals = self.service.scheduler, self.totals
        counters: dict[str, float] = {
            "prompt_tokens": totals.read,
            "prompt_seconds": totals.prompt_seconds,
            "tokens_predicted": totals.generated,
            "tokens_predicted_seconds": totals.decode_seconds,
            "n_decode": scheduler.loop.steps,
        }
        gauges: dict[str, float] = {
            "prompt_tokens_seconds": _rate(totals.read, totals.prompt_seconds),
            "predicted_tokens_seconds": _rate(totals.generated, totals.decode_seconds),
            "requests_processing": scheduler.active,
            "requests_deferred": scheduler.waiting,
            "n_tokens_max": totals.longest,
            "n_busy_slots_per_decode": _rate(scheduler.loop.busy_rows, scheduler.loop.steps),
        }
        for name, value in counters.items():
            yield CounterMetricFamily(f"llamacpp:{name}", "As llama.cpp names it.", value)
        for name, value in gauges.items():
            yield GaugeMetricFamily(f"llamacpp:{name}", "As llama.cpp names it.", value)


def _rate(amount: float, per: float) -> float:
    return amount / per if per else 0.0


def memory_by_tier(service: Service, stats: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Bytes of every tier: what it holds, what it may hold, and for weights how many there are."""
    plan, cache, loading = service.engine.plan, service.scheduler.prefix_cache, service.engine.loading
    here = 0.0 if service.engine.parked else 1.0
    share = here if loading is None else loading.share
    mapped = plan.experts_held if plan.mode == "mmap" and here else 0
    in_use = sum(
        service.engine.state_bytes(each.read + each.decoded) for each in service.scheduler.snapshot()
    )
    tiers = {
        "program": {"used": plan.base, "limit": plan.base},
        "work": {"used": round(plan.work * here), "limit": plan.work},
        "dense": {
            "used": round((plan.dense_held + plan.dense_buffers) * share),
            "limit": plan.dense_held + plan.dense_buffers,
            "total": plan.dense,
        },
        "experts": {
            "used": stats.get(
                "cached_bytes", round(plan.experts_held * share) if "device" in stats else mapped
            ),
            "limit": stats.get("capacity_bytes", plan.experts_held),
            "total": plan.experts_total,
        },
        "requests": {"used": min(service.work.memory.used, plan.requests), "limit": plan.requests},
        "sessions": {"used": cache.bytes + in_use, "limit": cache.budget, "kept": len(cache)},
    }
    device = stats.get("device")
    if plan.tiers is not None:
        slot = plan.experts_held // max(1, plan.tiers.slots)
        tiers["experts"] |= {"used": stats.get("slots_used", 0) * slot, "limit": plan.experts_held}
        held = plan.tiers.held
        tiers["ram"] = {"used": stats.get("cached_bytes", round(held * here)), "limit": held}
    if device is not None:
        tiers["gpu"] = {"used": device["used_bytes"] or 0, "limit": device["memory_bytes"]}
    if cache.disk is not None:
        store = cache.disk.store
        tiers["disk"] = {"used": store.bytes, "limit": store.space, "kept": len(store)}
    return tiers


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
