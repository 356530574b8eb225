"""Series of what the scheduler, the keys and the memory are like at this moment: read on each scrape."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from penstock.machine.memory import resident_bytes
from penstock.server.http.keys import LIMITS
from penstock.server.observe.draft_series import draft_series
from penstock.server.observe.machine_series import machine_series
from penstock.server.observe.memory import memory_by_tier
from penstock.server.observe.storage_series import storage_series
from penstock.server.service import Service


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
