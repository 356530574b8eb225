"""Memory by tier, for /metrics."""

from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from penstock.server.dashboard import memory
from penstock.server.service import Service


class MemorySeries(Collector):
    """What each tier holds and what it may hold: the same numbers that the page shows."""

    def __init__(self, service: Service) -> None:
        self.service = service

    def collect(self) -> Iterator[Metric]:
        used = GaugeMetricFamily("penstock_memory_bytes", "Bytes that a tier holds.", labels=("tier",))
        limit = GaugeMetricFamily("penstock_memory_limit_bytes", "Bytes that it may hold.", labels=("tier",))
        for tier, amounts in memory(self.service, self.service.engine.stats()).items():
            used.add_metric((tier,), amounts["used"])
            limit.add_metric((tier,), amounts["limit"])
        yield used
        yield limit
