"""Where weights were found when steps needed them, for Prometheus."""

from collections.abc import Iterator
from typing import Any, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

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
# (counter, what it counts, label, value of the label → statistics that add up to it)
TIER_COUNTERS: Final = (
    (
        "penstock_tier_hits",
        "Experts that a step found there.",
        "tier",
        {"gpu": ("device_hits",), "memory": ("memory_hits",), "disk": ("disk_reads",)},
    ),
    (
        "penstock_tier_experts_computed",
        "Experts of a step, by who computed them.",
        "by",
        {"gpu": ("device_hits", "copied", "passed"), "cpu": ("on_host",)},
    ),
    ("penstock_tier_link_bytes", "Bytes of experts copied.", "to", {"gpu": ("link_bytes",)}),
    ("penstock_tier_evictions", "Experts that gave up their place.", "tier", {"gpu": ("device_evictions",)}),
    (
        "penstock_tier_host_seconds",
        "Time of the host in a layer's turn, by what it did.",
        "doing",
        {
            "computing": ("host_seconds",),
            "waiting for the disk": ("disk_stall_seconds",),
            "waiting for the gpu": ("idle_seconds",),
        },
    ),
    (
        "penstock_tier_gpu_stall_seconds",
        "Time that the GPU waited in the middle of layers, by whom it waited for.",
        "for",
        {"cpu": ("host_stall_seconds",), "link": ("link_stall_seconds",)},
    ),
    (
        "penstock_tier_ahead",
        "Experts that were brought to the GPU before they were asked for, by whether they were needed.",
        "needed",
        {"yes": ("ahead_right",), "no": ("ahead_wrong",)},
    ),
)
STORAGE_GAUGES: Final = (
    ("cached_bytes", "penstock_cache_bytes", "Bytes of experts in memory."),
    ("capacity_bytes", "penstock_capacity_bytes", "Bytes of experts that may be in memory."),
)


def storage_series(stats: dict[str, Any]) -> Iterator[Metric]:
    """Nothing while the system decides what stays in memory (`mmap`): then nothing is known."""
    blocks = stats.get("blocks", [])
    for statistic, text in BLOCK_SERIES if blocks else ():
        family = CounterMetricFamily(f"penstock_expert_{statistic}", text, labels=("block",))
        for number, counters in enumerate(blocks):
            family.add_metric((str(number),), counters[statistic])
        yield family
    if "device_hits" in stats:
        yield from _tiers(stats)
    for statistic, name, text in STORAGE_COUNTERS:
        if statistic in stats:
            yield CounterMetricFamily(name, text, stats[statistic])
    for statistic, name, text in STORAGE_GAUGES:
        if statistic in stats:
            yield GaugeMetricFamily(name, text, stats[statistic])


def _tiers(stats: dict[str, Any]) -> Iterator[Metric]:
    """Where a GPU holds some of the experts, memory others, and the disk all."""
    for name, text, label, values in TIER_COUNTERS:
        family = CounterMetricFamily(name, text, labels=(label,))
        for value, statistics in values.items():
            family.add_metric((value,), sum(stats[statistic] for statistic in statistics))
        yield family
