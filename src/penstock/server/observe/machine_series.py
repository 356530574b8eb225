"""The machines of a cluster, for /metrics and for the page: who is here, what each does, and the links between."""

from collections.abc import Iterator
from typing import Any, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

# (statistic, counter, what it counts)
COUNTERS: Final = (
    ("busy_seconds", "penstock_machine_busy_seconds", "Time that a machine worked on steps."),
    (
        "steps",
        "penstock_machine_steps",
        "Steps of a stage; of an expert worker, layers that it was asked for.",
    ),
    (
        "rows",
        "penstock_machine_rows",
        "Tokens of a stage's steps; of an expert worker, experts computed for tokens.",
    ),
    (
        "sent_bytes",
        "penstock_machine_sent_bytes",
        "Bytes that a machine sent to others, since it last joined.",
    ),
    ("waited_seconds", "penstock_machine_waited_seconds", "Time that the head waited for an expert worker."),
)
GAUGES: Final = (
    ("round_trip_seconds", "penstock_machine_round_trip_seconds", "Of a word on the control connection."),
    ("seen_seconds_ago", "penstock_machine_silent_seconds", "Since the head last heard of a machine."),
)
# What the page shows of a machine; where they listen is nobody's business.
SHOWN: Final = (
    "name",
    "stage",
    "layers",
    "experts",
    "experts_taken",
    "mode",
    "device",
    "sequences",
    "busy_seconds",
    "rows",
    "sent_bytes",
    "waited_seconds",
    "round_trip_seconds",
    "seen_seconds_ago",
)


def machine_series(cluster: dict[str, Any] | None) -> Iterator[Metric]:
    """Nothing on one machine."""
    if cluster is None:
        return
    yield GaugeMetricFamily("penstock_cluster_up", "1 while all stages are there.", cluster["up"])
    here = sum(1 for each in cluster["members"] if "stage" in each)
    yield GaugeMetricFamily("penstock_cluster_stages", "Stages that are here.", here)
    yield GaugeMetricFamily("penstock_cluster_stages_wanted", "Stages that it takes.", cluster["stages"])
    if "epochs" in cluster:
        yield CounterMetricFamily(
            "penstock_cluster_groups", "Times that all stages were connected.", cluster["epochs"]
        )
    for kind, series in ((CounterMetricFamily, COUNTERS), (GaugeMetricFamily, GAUGES)):
        for statistic, name, text in series:
            family = kind(name, text, labels=("machine", "name"))
            for number, each in enumerate(cluster["members"]):
                if statistic in each:
                    family.add_metric((str(number), each["name"]), each[statistic])
            yield family


def machines_shown(cluster: dict[str, Any] | None) -> dict[str, Any] | None:
    """For the page; None on one machine."""
    if cluster is None:
        return None
    members = [{name: each[name] for name in SHOWN if name in each} for each in cluster["members"]]
    return {"stages": cluster["stages"], "up": cluster["up"], "members": members}
