"""What a scrape of /metrics finds out by looking: the scheduler, kept sessions, the weights' storage."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

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


# By block, from the engine's statistics: (statistic, what it counts).
BLOCK_SERIES: Final = (
    ("hits", "Experts that were in memory when a step needed them."),
    ("misses", "Experts that had to be read."),
    ("evictions", "Experts that gave up their memory to others."),
    ("bytes_read", "Bytes of the experts that had to be read."),
    ("stall_seconds", "Time that steps spent waiting for experts, with nothing else to do."),
)
# (statistic, counter, what it counts)
STORAGE_COUNTERS: Final = (
    ("prefetch_useful", "penstock_prefetch_useful", "Experts that were read ahead and then needed."),
    ("prefetch_wasted", "penstock_prefetch_wasted", "Experts that were read ahead for nothing."),
    ("read_errors", "penstock_read_errors", "Reads of experts that failed."),
    (
        "dense_stall_seconds",
        "penstock_dense_stall_seconds",
        "Time that steps spent waiting for the weights that every token needs.",
    ),
    ("disk_bytes", "penstock_disk_bytes_read", "All bytes read from disk."),
    ("read_seconds", "penstock_disk_read_seconds", "Time during which anything was being read."),
)
STORAGE_GAUGES: Final = (
    ("cached_bytes", "penstock_cache_bytes", "Bytes of experts in memory."),
    ("capacity_bytes", "penstock_capacity_bytes", "Bytes of experts that may be in memory."),
)


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
        yield from self._storage(self.service.engine.stats())
        yield from self._as_llamacpp()

    def _requests(self) -> Iterator[Metric]:
        scheduler, totals = self.service.scheduler, self.totals
        prompt = CounterMetricFamily("penstock_prompt_tokens", "Tokens of prompts.", labels=("source",))
        prompt.add_metric(("read",), totals.read)
        prompt.add_metric(("cached",), totals.cached)
        yield prompt
        yield CounterMetricFamily("penstock_generated_tokens", "Tokens of answers.", totals.generated)
        yield GaugeMetricFamily("penstock_active_requests", "Requests being answered.", scheduler.active)
        yield GaugeMetricFamily("penstock_waiting_requests", "Requests waiting.", scheduler.waiting)
        yield CounterMetricFamily("penstock_steps", "Steps of the model.", scheduler.steps)
        yield CounterMetricFamily(
            "penstock_batch_rows",
            "Requests that took part in a step, summed over steps.",
            scheduler.busy_rows,
        )
        yield CounterMetricFamily(
            "penstock_paused_requests", "Times that a request had to step back for memory.", scheduler.paused
        )
        yield CounterMetricFamily(
            "penstock_engine_seconds", "Time spent in steps of the model.", scheduler.engine_seconds
        )
        yield GaugeMetricFamily(
            "penstock_session_pool_bytes", "State of idle sessions.", scheduler.pool.bytes
        )
        yield GaugeMetricFamily("penstock_session_pool_sessions", "Idle sessions.", len(scheduler.pool))

    def _storage(self, stats: dict[str, Any]) -> Iterator[Metric]:
        """Nothing while the system decides what stays in memory (`mmap`): then nothing is known."""
        blocks = stats.get("blocks", [])
        for statistic, text in BLOCK_SERIES if blocks else ():
            family = CounterMetricFamily(f"penstock_expert_{statistic}", text, labels=("block",))
            for number, counters in enumerate(blocks):
                family.add_metric((str(number),), counters[statistic])
            yield family
        for statistic, name, text in STORAGE_COUNTERS:
            if statistic in stats:
                yield CounterMetricFamily(name, text, stats[statistic])
        for statistic, name, text in STORAGE_GAUGES:
            if statistic in stats:
                yield GaugeMetricFamily(name, text, stats[statistic])

    def _as_llamacpp(self) -> Iterator[Metric]:
        """The same under llama.cpp's names, for dashboards that know those."""
        scheduler, totals = self.service.scheduler, self.totals
        counters: dict[str, float] = {
            "prompt_tokens": totals.read,
            "prompt_seconds": totals.prompt_seconds,
            "tokens_predicted": totals.generated,
            "tokens_predicted_seconds": totals.decode_seconds,
            "n_decode": scheduler.steps,
        }
        gauges: dict[str, float] = {
            "prompt_tokens_seconds": _rate(totals.read, totals.prompt_seconds),
            "predicted_tokens_seconds": _rate(totals.generated, totals.decode_seconds),
            "requests_processing": scheduler.active,
            "requests_deferred": scheduler.waiting,
            "n_tokens_max": totals.longest,
            "n_busy_slots_per_decode": _rate(scheduler.busy_rows, scheduler.steps),
        }
        for name, value in counters.items():
            yield CounterMetricFamily(f"llamacpp:{name}", "As llama.cpp names it.", value)
        for name, value in gauges.items():
            yield GaugeMetricFamily(f"llamacpp:{name}", "As llama.cpp names it.", value)


def _rate(amount: float, per: float) -> float:
    return amount / per if per else 0.0
